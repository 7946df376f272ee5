"""Device profiles: every number sourced, joules = watts x seconds, mistakes named."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import ROOT
from pydantic import ValidationError

from poet_onnx.costing.device import ComputeProfile, DeviceProfile, StorageProfile, device_names, load_device
from poet_onnx.errors import InputError

DEVICES = ROOT / "poet_onnx" / "costing" / "devices"
GOOD = """
name = "board"
description = "a board"
ram_bytes = { value = 1_048_576, source = "data sheet" }

[compute]
matmul_flops_per_second = { value = 1.0e9, source = "measured" }
elementwise_flops_per_second = { value = 1.0e9, source = "measured" }
active_watts = { value = 2.0, source = "measured" }
idle_watts = { value = 0.5, source = "measured" }
"""
STORAGE = """
[storage]
page_out_bytes_per_second = { value = 1.0e6, source = "x" }
page_in_bytes_per_second = { value = 1.0e6, source = "x" }
page_out_latency_seconds = { value = 0.0, source = "x" }
page_in_latency_seconds = { value = 0.0, source = "x" }
watts = { value = 0.1, source = "x" }
asynchronous = { value = true, source = "x" }
capacity_bytes = { value = 1_000_000, source = "x" }
"""


def load_text(folder: Path, text: str) -> DeviceProfile:
    path = folder / "board.toml"
    path.write_text(text, encoding="utf-8")
    return load_device(path)


def test_the_built_in_devices() -> None:
    boards = {"a72", "m0", "m4", "tx2"}
    assert {*boards, *(f"{board}-paper" for board in boards), "host"} <= set(device_names())
    assert sorted(device_names()) == sorted(path.stem for path in DEVICES.glob("*.toml"))


@pytest.mark.parametrize("name", device_names())
def test_every_built_in_number_has_a_source(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    for section in (device, device.compute, device.storage):
        assert isinstance(section, (DeviceProfile, ComputeProfile, StorageProfile))
        numbers = {
            key: value
            for key, value in section.model_dump(exclude={"sources"}).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        assert numbers
        for key in numbers:
            assert len(section.sources[key]) > 10, f"{name}: {key}"


def test_every_kind_of_storage_has_sources_and_keeps_to_the_boards_limit() -> None:
    found = set()
    for name in device_names():
        board = load_device(name)
        for kind, bus in board.storage_kinds.items():
            storage = load_device(name, kind).storage
            assert storage is not None
            assert max(storage.page_in_bytes_per_second, storage.page_out_bytes_per_second) <= bus.value
            numbers = storage.model_dump(exclude={"sources", "endurance_bytes"}, exclude_none=True)
            assert all(len(storage.sources[key]) > 10 for key in numbers)
            found.add(kind)
    assert found == {"sd-a1", "sd-a2", "emmc", "nvme"}


def test_the_usual_storage_and_another_one() -> None:
    pi5, nvme = load_device("pi5"), load_device("pi5", "nvme")
    assert pi5 == load_device("pi5", "sd-a2") != nvme
    assert pi5.storage is not None
    assert nvme.storage is not None
    assert (nvme.storage.page_in_bytes_per_second, nvme.storage.page_out_bytes_per_second) == (450e6, 450e6)
    assert "PCIe 2.0" in nvme.storage.sources["page_in_bytes_per_second"]
    assert load_device(nvme) == load_device(pi5, "nvme") == nvme
    with pytest.raises(InputError, match=r"'pi5' has no choice of storage 'ufs': its kinds are sd-a2, sd-a1, nvme"):
        load_device("pi5", "ufs")
    with pytest.raises(InputError, match=r"'a72' has no choice of storage 'nvme': its profile fixes the storage"):
        load_device("a72", "nvme")


def test_a_board_that_is_another_one_with_more_ram() -> None:
    small, large = load_device("pi4-1gb"), load_device("pi4-8gb")
    differ = {"name", "description", "ram_bytes", "sources"}
    assert small.model_dump(exclude=differ) == large.model_dump(exclude=differ)
    sizes = [load_device(name).ram_bytes for name in ("pi4-1gb", "pi4-2gb", "pi4", "pi4-8gb")]
    assert sizes == sorted(set(sizes))
    assert all(size < gib * 2**30 for size, gib in zip(sizes, (1, 2, 4, 8), strict=True))


def test_rates_grow_from_one_core_to_all() -> None:
    compute = load_device("pi4").compute
    assert compute.with_threads(1) is compute
    assert compute.all_cores is not None
    rates = [compute.with_threads(threads).matmul_flops_per_second for threads in range(1, 7)]
    assert rates == sorted(rates)
    assert rates[1] == pytest.approx(rates[0] + (rates[3] - rates[0]) / 3)
    assert rates[3] == rates[5] == compute.all_cores.matmul_flops_per_second
    assert compute.with_threads(4).active_watts == 3.7
    a72 = load_device("a72").compute
    assert a72.with_threads(4) is a72


@pytest.mark.parametrize("name", [name for name in device_names() if not name.endswith("-paper")])
def test_our_profiles_let_power_say_the_energy(name: str) -> None:
    device = load_device(name)
    assert device.compute.joules_per_flop is None
    assert device.compute.inconsistency is None


def test_the_papers_constants() -> None:
    a72, m0, m4, tx2 = (load_device(f"{board}-paper") for board in ("a72", "m0", "m4", "tx2"))
    assert a72.compute.joules_per_flop == pytest.approx(13.53 * 0.6 * 5 / 16283e5, rel=1e-6)
    assert a72.compute.inconsistency is not None
    assert m0.compute.joules_per_flop == pytest.approx(0.012 * 0.020 * 3.3 / 2000)
    assert m4.compute.joules_per_flop == pytest.approx(255.6237 * 0.003328 * 3.3 / 16283e5, rel=1e-6)
    assert m4.compute.matmul_flops_per_second == pytest.approx(16283e5 / 255.6237, rel=1e-6)
    assert tx2.compute.active_watts == 0.766
    assert m0.storage is not None
    assert (m0.storage.page_in_bytes_per_second, m0.storage.page_in_latency_seconds) == (4_616_510.0, 0.000109)
    assert a72.storage is not None
    assert (a72.storage.page_out_bytes_per_second, a72.storage.watts) == (24.5e6, 0.15)


def test_microcontrollers_are_for_planning_only() -> None:
    planning = {name for name in device_names() if load_device(name).planning_only}
    assert {"m0", "m0-paper", "m4", "m4-paper"} <= planning
    assert planning.isdisjoint({"a72", "a72-paper", "tx2", "tx2-paper", "host"})


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    device = load_text(tmp_path, GOOD)
    assert (device.name, device.ram_bytes, device.storage) == ("board", 1_048_576, None)
    assert device.compute.sources["active_watts"] == "measured"
    with_storage = load_text(tmp_path, GOOD + STORAGE)
    assert with_storage.storage is not None
    assert with_storage.storage.asynchronous is True
    assert DeviceProfile.model_validate_json(with_storage.model_dump_json()) == with_storage


def test_a_profile_based_on_a_built_in_one(tmp_path: Path) -> None:
    own = GOOD.partition("[compute]")[0]
    ufs = '[storage_kinds]\nufs = { value = 5.0e8, source = "data sheet" }\n'
    device = load_text(tmp_path, f'based_on = "pi4"\n{own}{ufs}')
    assert (device.name, device.ram_bytes, device.compute) == ("board", 1_048_576, load_device("pi4").compute)
    assert device.process == load_device("a72").process
    assert device.storage is not None
    assert device.storage.page_in_bytes_per_second == 5.0e8
    assert load_text(tmp_path, f'process = "aarch64"\n{GOOD}').process == device.process
    for text, message in (
        (f'based_on = "pi9"\n{GOOD}', "`based_on` is 'pi9', but there are a72, "),
        (f'process = "x"\n{GOOD}', "`process` is 'x', but there are aarch64"),
        (GOOD + STORAGE + ufs, "give `storage` or `storage_kinds`, not both"),
        (GOOD + ufs.replace("ufs", "tape"), "unknown kind of storage 'tape': emmc, nvme, sd-a1, sd-a2, ufs exist"),
    ):
        with pytest.raises(InputError, match=message):
            load_text(tmp_path, text)


def based(folder: Path, name: str, tables: str) -> DeviceProfile:
    """Return a board that is based on a built-in one, but for what tables say."""
    return load_text(folder, f'name = "board"\ndescription = "a board"\nbased_on = "{name}"\n{tables}')


def test_a_number_in_a_table_is_taken_and_the_others_are_the_built_in_ones(tmp_path: Path) -> None:
    pi = load_device("pi5")
    watts = '{ value = 2.5, source = "my meter" }'
    one = based(tmp_path, "pi5", f"[compute]\nactive_watts = {watts}\n").compute
    assert one == pi.compute.model_copy(
        update={"active_watts": 2.5, "sources": {**pi.compute.sources, "active_watts": "my meter"}}
    )
    many = based(tmp_path, "pi5", f"[compute.all_cores]\nactive_watts = {watts}\n").compute
    assert (many.active_watts, many.with_threads(4).active_watts) == (pi.compute.active_watts, 2.5)
    process = based(tmp_path, "pi5", f"[process]\nsession_bytes = {watts.replace('2.5', '7')}\n").process
    assert process is not None
    assert pi.process is not None
    assert (process.session_bytes, process.runtime_bytes) == (7, pi.process.runtime_bytes)


@pytest.mark.parametrize("name", ["a72", "pi5"], ids=["storage", "kinds"])
def test_a_number_of_the_storage_is_taken_and_the_others_are_the_usual_ones(tmp_path: Path, name: str) -> None:
    own, usual = based(tmp_path, name, '[storage]\nwatts = { value = 2.5, source = "x" }\n'), load_device(name).storage
    assert usual is not None
    assert own.storage == usual.model_copy(update={"watts": 2.5, "sources": {**usual.sources, "watts": "x"}})
    assert not own.storage_kinds


def test_kinds_of_storage_take_the_place_of_a_storage(tmp_path: Path) -> None:
    device = based(tmp_path, "a72", '[storage_kinds]\nufs = { value = 5.0e8, source = "data sheet" }\n')
    assert list(device.storage_kinds) == ["ufs"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("[compute]\nactive_watts = { value = 2.0 }", "compute: `active_watts` must have exactly"),
        ("[compute]\nactive_watts = 2.0", "compute: `active_watts` has no source"),
        ("[compute]\nwatts = { value = 2.0, source = 'x' }", r"compute\.watts: "),
        ("[storage]\nwatts = 2.0", "storage: `watts` has no source"),
        ("[storage]\nwatts = { value = -2.0, source = 'x' }", r"storage\.watts: .*\(found -2\.0\)"),
        ("compute = 7", "compute: "),
        ("storage = 'nvme'", r"storage: .*\(found 'nvme'\)"),
        ("[compute.all_cores]\ncores = { value = 1, source = 'x' }", r"compute\.all_cores\.cores: "),
    ],
)
def test_mistakes_beside_a_built_in_profile_are_named(tmp_path: Path, tables: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        based(tmp_path, "pi5", tables)


def test_profiles_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_device("a72").ram_bytes = 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ram_bytes", "ram_megabytes", r"board\.toml: .*ram_(bytes|megabytes)"),
        ("1_048_576", "-1", r"ram_bytes: .*greater than or equal to 1024 \(found -1\)"),
        ("1_048_576", "1.5", r"ram_bytes: .*integer \(found 1\.5\)"),
        (
            'value = 2.0, source = "measured"',
            'value = 0.0, source = "measured"',
            r"compute\.active_watts: .*\(found 0\.0\)",
        ),
        ("value = 2.0", "value = 1e9", r"compute\.active_watts: .*less than or equal to 10000 \(found 1000000000\.0\)"),
        ("value = 2.0", "value = nan", r"compute\.active_watts: .*finite number"),
        ("value = 2.0", 'value = "much"', r"compute\.active_watts: .*number \(found 'much'\)"),
        ('{ value = 2.0, source = "measured" }', "2.0", r"compute: `active_watts` has no source"),
        ('{ value = 2.0, source = "measured" }', "{ value = 2.0 }", r"compute: `active_watts` must have exactly"),
        ('{ value = 2.0, source = "measured" }', '{ value = 2.0, source = " " }', r"`active_watts` has no source"),
        ('idle_watts = { value = 0.5, source = "measured" }', "", r"compute\.idle_watts: field required"),
        ("[compute]", "[processor]", r"board\.toml: "),
        ('name = "board"', 'name = ""', r"name: "),
        ("[compute]", "[compute", r"not valid TOML: .*line 6"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError, match=message):
        load_text(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("1_048_576", "9" * 5000), r"is not valid TOML: .*5000 digits"),
        ("a = " + "[" * 100_000, r"is not usable TOML: its values are nested too deep"),
        ("a = " + "{a = " * 50_000, r"is not usable TOML: its values are nested too deep"),
        ("sources = 7", "`sources` must be a table"),
        (GOOD.replace('description = "', 'description = "\\u001b[31m'), r"description: .*\(found '\\x1b\[31m"),
        (
            GOOD.replace('description = "', 'description = "' + "x" * 1000),
            r"description: .{,80}\(found 'x{40,60}\.\.\.",
        ),
    ],
)
def test_text_that_no_person_has_written(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"board\.toml:? {message}") as caught:
        load_text(tmp_path, text)
    assert str(caught.value).isprintable()


def test_energy_that_contradicts_power_must_say_so(tmp_path: Path) -> None:
    per_flop = 'joules_per_flop = { value = 3.0e-9, source = "another measurement" }\n'
    with pytest.raises(InputError, match=r"is 3 W, but `active_watts` is 2 W: joules must be watts x seconds"):
        load_text(tmp_path, GOOD + per_flop)
    reason = 'inconsistency = "two measurements"\n'
    assert load_text(tmp_path, GOOD + per_flop + reason).compute.inconsistency == "two measurements"
    with pytest.raises(InputError, match="the numbers agree"):
        load_text(tmp_path, GOOD + per_flop.replace("3.0e-9", "2.0e-9") + reason)
    with pytest.raises(InputError, match="which is absent"):
        load_text(tmp_path, GOOD + reason)


def test_unknown_names_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"'a73'.*{', '.join(device_names())}.*\.toml"):
        load_device("a73")
    with pytest.raises(InputError, match=r"absent\.toml: No such file"):
        load_device(tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_device(str(binary))
