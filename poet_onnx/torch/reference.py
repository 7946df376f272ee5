"""What torch computes: steps of a module's copy, in its own precision or in double, at any values of its parameters."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.lora import Adapters
from poet_onnx.torch.adapting import PlacedAdapter, place
from poet_onnx.torch.calls import CHILD, wrap
from poet_onnx.torch.calm import calm_recompute, calm_torch
from poet_onnx.torch.drops import Drop, recorded_drops
from poet_onnx.torch.naming import canonical_names, named_tensors
from poet_onnx.torch.objective import Objective
from poet_onnx.torch.untouched import untouched

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = npt.NDArray[Any]

RAISED = ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
"""What the code of a module or function raises that cannot be run otherwise than it was meant."""


@dataclass(frozen=True)
class Step:
    """What a step computed.

    Attributes:
        loss: before the update.
        gradients: by parameter; those that have none are not there.
        buffers: what they are after the step.
        draws: whether numbers were drawn from torch's generator.
        changed: parameters that the forward pass itself changed, of a step that is not kept.
    """

    loss: float
    gradients: Mapping[str, Array]
    buffers: Mapping[str, Array]
    draws: bool = False
    changed: tuple[str, ...] = ()


class Reference:
    """A copy of a module, which stays as it is.

    Attributes:
        tensors: parameters and buffers by their names in `state_dict`, of tied ones the first.
        samples: of each batch normalization how many numbers of a channel it last saw, and how often it ran.
        dropped: what the last step or evaluation would have dropped, if dropout were on.
    """

    def __init__(self, module: nn.Module, example_inputs: Any, objective: Objective, *, double: bool = False) -> None:
        """Copy the module to the CPU.

        Args:
            module: that is to be run.
            example_inputs: as for `export`.
            objective: the loss.
            double: whether to compute in double precision.
        """
        import torch

        self._double, self._objective = double, objective
        self._module = _copied(module, torch.float64 if double else None)
        self._call = wrap(self._module, example_inputs)
        first = canonical_names(self._module)
        self.tensors = {name: each for name, each in named_tensors(self._module).items() if first[name] == name}
        self.parameters = [first[name] for name, _ in self._module.named_parameters()]
        self._placed: Sequence[PlacedAdapter] = ()
        self.samples: dict[str, tuple[int, int]] = {}
        self.dropped: list[Drop] = []
        for name, layer in self.batch_norms():
            layer.register_forward_pre_hook(lambda _, given, name=name: self._count(name, given[0]))

    def adapt(self, adapters: Adapters, values: Mapping[str, Array]) -> list[str]:
        """Let the module compute with adapters, whose A and B become parameters under the names of the graph.

        Args:
            adapters: of a training graph.
            values: A and B as they stand there, by name.

        Returns:
            A sentence about each adapter that is left out.
        """
        import torch

        dtype = torch.float64 if self._double else torch.float32
        self._placed, left_out = place(adapters, self._module, self.tensors, values)
        for each in self._placed:
            for name in (each.adapter.first, each.adapter.second):
                self.tensors[name] = torch.tensor(values[name], dtype=dtype, requires_grad=True)
                self.parameters.append(name)
        return left_out

    def batch_norms(self) -> Iterator[tuple[str, Any]]:
        """Yield torch's batch normalizations, by name."""
        from torch.nn.modules.batchnorm import _BatchNorm

        for name, layer in self._module.named_modules():
            if isinstance(layer, _BatchNorm):
                yield name, layer

    def buffers(self) -> dict[str, Array]:
        """Return the buffers as they are."""
        return {name: _array(each) for name, each in self._now().items() if name not in self.parameters}

    def batch(self) -> dict[str, Array]:
        """Return the example inputs."""
        return {name: each.detach().cpu().numpy() for name, each in self._call.inputs.items()}

    def targets(self) -> list[Array]:
        """Return labels and targets in the order of the loss's terms; none before the first step, unless given."""
        return [each.detach().cpu().numpy() for each in self._objective.targets]

    def step(self, values: Mapping[str, Array], batch: Mapping[str, Array], *, keep: bool = True) -> Step:
        """Compute loss and gradients of a batch.

        Args:
            values: of parameters and buffers; the others stay what the last step left.
            batch: of the example's names.
            keep: whether buffers and all else stay as the step leaves them.
        """
        import torch

        with torch.random.fork_rng(devices=[]), contextlib.nullcontext() if keep else untouched(self._module):
            self._take(values)
            state = torch.get_rng_state()
            before = {} if keep else {name: self._mark(name) for name in self.parameters}
            with self._precision(), calm_torch(), recorded_drops(self._module, self.dropped):
                loss = self._loss(batch)
            changed = tuple(name for name, mark in before.items() if mark != self._mark(name))
            draws = not torch.equal(state, torch.get_rng_state())
            self._forget_gradients()
            if loss.requires_grad:
                with self._precision(), calm_recompute():
                    torch.autograd.backward(loss)
            grads = {name: self.tensors[name].grad for name in self.parameters}
            self._forget_gradients()
            buffers = self.buffers()
            found = {name: _array(each) for name, each in grads.items() if each is not None}
            return Step(float(loss.detach()), found, buffers, draws, changed)

    def evaluated_loss(self, values: Mapping[str, Array], batch: Mapping[str, Array]) -> float:
        """Return the loss of a batch with the whole module in eval mode, which stays as it was."""
        import torch

        with untouched(self._module), torch.no_grad(), self._precision(), calm_torch(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a checkpoint warns that it gets no gradient
            self._take(values)
            self._module.eval()
            with recorded_drops(self._module, self.dropped):
                return float(self._loss(batch))

    def _loss(self, batch: Mapping[str, Array]) -> Tensor:
        outputs = self._outputs(tuple(self._tensor(batch[name]) for name in self._call.inputs))
        return self._objective(dict(zip(self._call.outputs, outputs, strict=True)))

    def _outputs(self, inputs: tuple[Tensor, ...]) -> Sequence[Tensor]:
        """Return what the module computes of its inputs, with what adapters add to its weights."""
        import torch

        now = self._now()
        weights = {
            each.tensor: now[each.tensor] + each.added(now[each.adapter.first], now[each.adapter.second])
            for each in self._placed
        }
        named = {f"{CHILD}.{name}": weight for name, weight in weights.items()}
        outputs: Sequence[Tensor] = torch.func.functional_call(self._call.wrapper, named, inputs)
        return outputs

    def _mark(self, name: str) -> tuple[int, str]:
        """Return how often a parameter was written to, which `.data` hides, and the sum of its numbers."""
        tensor = self.tensors[name]
        return tensor._version, str(tensor.detach().sum())

    def _forget_gradients(self) -> None:
        for name in self.parameters:
            self.tensors[name].grad = None

    def _now(self) -> dict[str, Tensor]:
        """Return all tensors as they are now: a forward pass may have put another one in the place of a buffer."""
        now = named_tensors(self._module)
        return {name: now.get(name, each) for name, each in self.tensors.items()}

    def _take(self, values: Mapping[str, Array]) -> None:
        import torch

        self.samples.clear()
        now = self._now()
        with torch.no_grad():
            for name, array in values.items():
                if name in now:
                    now[name].copy_(torch.from_numpy(np.array(array)))

    def _tensor(self, array: Array) -> Tensor:
        import torch

        tensor = torch.from_numpy(np.array(array))
        return tensor.double() if self._double and tensor.is_floating_point() else tensor

    def _count(self, name: str, given: Tensor) -> None:
        _, runs = self.samples.get(name, (0, 0))
        self.samples[name] = given.numel() // given.shape[1], runs + 1

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        """Let what the module makes by itself be of its precision, too."""
        import torch

        usual = torch.get_default_dtype()
        if self._double:
            torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)


def _copied(module: nn.Module, dtype: Any) -> nn.Module:
    """Return a copy of a module on the CPU; what it has kept of an earlier call is cut off from that."""
    import torch

    parts = list(module.modules())
    held = [each for part in parts for each in part.__dict__.values() if isinstance(each, torch.Tensor)]
    memo: dict[int, Any] = {id(each): each.detach().clone() for each in held if each.grad_fn is not None}
    copied = copy.deepcopy(module, memo).to("cpu")
    copied = copied if dtype is None else copied.to(dtype)
    for part in copied.modules():
        for name, each in part.__dict__.items():
            if isinstance(each, torch.Tensor):
                part.__dict__[name] = each.to("cpu", dtype if each.is_floating_point() else None)
    _hook(module, copied)
    return copied


def _hook(module: nn.Module, copied: nn.Module) -> None:
    """Let hooks on the gradients of parameters, which a copy has none of, see those of the copy, too."""
    pairs: Iterator[tuple[Any, Any]] = zip(module.parameters(), copied.parameters(), strict=True)
    for given, parameter in pairs:
        for hook in (given._backward_hooks or {}).values():
            parameter.register_hook(hook)
        for hook in (given._post_accumulate_grad_hooks or {}).values():
            parameter.register_post_accumulate_grad_hook(hook)


def _array(tensor: Tensor) -> Array:
    found = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return np.array((found.double() if found.is_floating_point() else found).numpy())
