"""What a store cannot do, lacks or must not lose is refused by name, and it stays as it was."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import onnx
import pytest
from file_sizes import file_size_limit
from safetensors.numpy import load_file
from stored_nets import feeds, rewritten, session_of, state, train, write_net

import poet_onnx
from poet_onnx import SGD, AdamW, TrainingSession
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning
from poet_onnx.training.store_file import has_store


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files of nets without a loss."""
    folder = tmp_path_factory.mktemp("nets")
    return {kind: write_net(kind, folder / f"{kind}.onnx") for kind in ("text", "image", "decoder")}


def test_other_frozen_weights_are_refused(nets: dict[str, Path], tmp_path: Path) -> None:
    options = {"lora": "targets=*.q.weight,rank=4", "store": "always"}
    path = rewritten(nets["decoder"], tmp_path / "net.onnx", **options)
    values = load_file(path.with_suffix(".safetensors"))
    values["layers.0.up.weight"][3, 4] += 1
    with pytest.raises(InputError, match=r"The frozen 'layers.0.up.weight' has other numbers than"):
        TrainingSession(path, values, store=tmp_path / "store")
    del values["layers.0.up.weight"]
    with pytest.raises(InputError, match=r"reads the frozen 'layers.0.up.weight' from its store, but"):
        TrainingSession(path, values, store=tmp_path / "store")
    assert not has_store(tmp_path / "store")
    first = session_of(path, store=tmp_path / "store")
    del first
    model = onnx.load(nets["decoder"])
    (weight,) = (each for each in model.graph.initializer if each.name == "layers.0.up.weight")
    weight.raw_data = weight.raw_data[::-1]
    onnx.save(model, tmp_path / "forward.onnx")
    other = rewritten(tmp_path / "forward.onnx", tmp_path / "other.onnx", **options)
    with pytest.raises(InputError, match="has other frozen weights than the model"):
        session_of(other, store=tmp_path / "store")


def test_a_failed_step_names_the_tensor_and_what_to_do(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["image"], tmp_path / "net.onnx", store="always")
    session = session_of(path, store=tmp_path / "store")
    train(session, 2)
    whole = state(session, tmp_path / "state.safetensors")
    file = tmp_path / "store" / "parameters.poet"
    place = file.read_bytes().index(session.parameters["3.weight"].tobytes()[:64])
    with file.open("r+b") as damaged:
        damaged.seek(place)
        original = damaged.read(4)
        damaged.seek(place)
        damaged.write(bytes(byte ^ 1 for byte in original))
    with pytest.raises(CheckFailedError, match=r"ensor '3\.weight' of the store"):
        train(session, 3)
    for call in (session.commit, partial(train, session, 3)):
        with pytest.raises(
            InputError, match="open a new session with the store, which is as it was at its last commit"
        ):
            call()
    with file.open("r+b") as damaged:
        damaged.seek(place)
        damaged.write(original)
    del session, call
    gc.collect()
    again = session_of(path, store=tmp_path / "store")
    assert again.updates == 2
    assert state(again, tmp_path / "state.safetensors") == whole


def test_a_disk_without_room_is_said_to_be_the_stores(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["image"], tmp_path / "net.onnx", store="always")
    said = r"Cannot reserve [0-9]+ bytes of the store in .*: File too large"
    with file_size_limit(1 << 20), pytest.raises(InputError, match=said):
        session_of(path, store=tmp_path / "store")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "none"}, "use --target stock, and an --optimizer"),
    ],
)
def test_what_a_store_cannot_do_is_refused(nets: dict[str, Path], options: dict[str, object], words: str) -> None:
    settings = {"device": "a72", "target": "stock", "loss": "cross-entropy", "store": "always"} | options
    with pytest.raises(InputError, match=words):
        poet_onnx.rewrite(nets["image"], **settings)  # type: ignore[arg-type]


def test_a_session_writes_over_nothing_that_it_lives_from(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["image"], tmp_path / "disk.onnx", store="always")
    session = session_of(path, store=tmp_path / "store")
    session.step(feeds(session, 0))
    for name in ("parameters.poet", "lock"):
        with pytest.raises(InputError, match="is a file of the session's store"):
            session.save_checkpoint(tmp_path / "store" / name)
    session.save_checkpoint(tmp_path / "store" / "beside.safetensors")
    (tmp_path / "link").symlink_to(path)
    for own in (path, path.with_name("disk.eval.onnx"), tmp_path / "link"):
        with pytest.raises(InputError, match="is a file of the session"):
            session.save_checkpoint(own)
        with pytest.raises(InputError, match="is a file of the session"):
            session.export_inference_model(own)
    session.step(feeds(session, 1))
    before = state(session, tmp_path / "state")
    del session
    gc.collect()
    assert state(session_of(path, store=tmp_path / "store"), tmp_path / "again") == before


def test_the_file_of_a_store_is_locked_under_any_name(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["image"], tmp_path / "disk.onnx", store="always")
    session = session_of(path, store=tmp_path / "store")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "parameters.poet").hardlink_to(tmp_path / "store" / "parameters.poet")
    with pytest.raises(InputError, match="is in use by another process or session"):
        session_of(path, store=tmp_path / "other")
    del session
    gc.collect()
    assert session_of(path, store=tmp_path / "other").updates == 0


def test_a_store_without_a_name_is_refused(
    nets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewritten(nets["image"], tmp_path / "disk.onnx", store="always")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(InputError, match="directory of the store has no name"):
        session_of(path, store="")
    assert list((tmp_path / "empty").iterdir()) == []


def test_an_evaluation_graph_that_reads_memory_is_refused_beside_a_store(nets: dict[str, Path], tmp_path: Path) -> None:
    poet_onnx.train_graph(nets["image"], loss="cross-entropy").save(tmp_path / "made")
    given = tmp_path / "made" / "training_model.onnx", tmp_path / "made" / "parameters.safetensors"
    path = tmp_path / "disk.onnx"
    poet_onnx.rewrite(given[0], device="a72", target="stock", gap=0.5, store="always").save(path)
    rewritten(nets["image"], tmp_path / "ram.onnx")
    said = r"reads '[^']*' from memory, but the model keeps it in a store: rewrite the forward model with --loss"
    with pytest.raises(InputError, match=said):
        TrainingSession(path, given[1], eval_model=tmp_path / "ram.eval.onnx", store=tmp_path / "store")
    session = TrainingSession(
        path, given[1], eval_model=tmp_path / "made" / "eval_model.onnx", store=tmp_path / "other"
    )
    session.step(feeds(session, 0))
    with pytest.raises(InputError, match=said):
        session.eval()
    session.step(feeds(session, 1))
    session.export_inference_model(tmp_path / "trained.onnx")


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (3, r"A store directory cannot be 3: give a str or a pathlib\.Path\.$"),
        (b"store", r"A store directory cannot be b'store': give a str or a pathlib\.Path\.$"),
        ("a\0b", r"The store directory 'a\\x00b' has a zero byte in it, .*: give another\.$"),
    ],
)
def test_what_is_no_directory_of_a_store_is_refused(
    nets: dict[str, Path], tmp_path: Path, store: object, said: str
) -> None:
    path = rewritten(nets["image"], tmp_path / "disk.onnx", store="always")
    with pytest.raises(InputError, match=f"^{said}"):
        session_of(path, store=store)


def test_a_session_says_what_its_store_lacks(nets: dict[str, Path], tmp_path: Path) -> None:
    disk = rewritten(nets["image"], tmp_path / "disk.onnx", store="always")
    ram = rewritten(nets["image"], tmp_path / "ram.onnx")
    text = rewritten(nets["text"], tmp_path / "text.onnx", store="always")
    with pytest.raises(InputError, match="give TrainingSession its directory"):
        session_of(disk)
    with pytest.raises(InputError, match="rewrite the original with --store always"):
        session_of(ram, store=tmp_path / "store")
    assert not has_store(tmp_path / "store")
    del_me = session_of(disk, store=tmp_path / "store")
    del del_me
    with pytest.raises(InputError, match="is of another model: it differs in"):
        session_of(text, store=tmp_path / "store")
    with pytest.raises(InputError, match="was made with AdamW"):
        session_of(disk, store=tmp_path / "store", optimizer=AdamW(weight_decay=0.5))
    with pytest.warns(PoetWarning, match="a learning rate of 0.001, with which training goes on; the session had 0.5"):
        assert session_of(disk, store=tmp_path / "store", optimizer=AdamW(0.5)).learning_rate == 0.001
    with pytest.raises(InputError, match="committed every 0 updates"):
        session_of(disk, store=tmp_path / "store", commit_every=0)
    with pytest.raises(InputError, match="rewritten for the optimizer"):
        session_of(disk, store=tmp_path / "store", optimizer=SGD(0.1))


def test_a_damaged_checkpoint_leaves_a_store_as_it_was(nets: dict[str, Path], tmp_path: Path) -> None:
    path, saved = rewritten(nets["text"], tmp_path / "net.onnx", store="always"), tmp_path / "saved.safetensors"
    session = session_of(path, store=tmp_path / "store", commit_every=100)
    train(session, 2)
    session.save_checkpoint(saved)
    train(session, 4)
    before = state(session, tmp_path / "before.safetensors")
    whole = saved.read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    for place in (len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError, match="damaged"):
            session.load_checkpoint(damaged)
        assert state(session, tmp_path / "after.safetensors") == before
    train(session, 5)
