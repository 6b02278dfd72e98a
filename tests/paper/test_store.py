"""Records on disk: whatever a kill leaves behind, whole records stay and nothing is doubled."""

from __future__ import annotations

import json

import pytest

from dartree.paper.store import RecordFile, read_records

RECORDS = [{"id": i, "text": "ä" * i} for i in range(4)]


def write(path, records):
    with RecordFile(path) as file:
        for record in records:
            file.append(record)


def test_what_is_appended_is_read(tmp_path):
    write(tmp_path / "part-a.jsonl", RECORDS[:2])
    write(tmp_path / "part-a.jsonl", RECORDS[2:])
    assert read_records(tmp_path) == RECORDS


def test_a_file_cut_at_any_byte_goes_on(tmp_path):
    """Every prefix of the file is what a kill may leave: its whole lines count, the rest goes."""
    path = tmp_path / "part-a.jsonl"
    write(path, RECORDS)
    data = path.read_bytes()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        assert read_records(tmp_path) == RECORDS[:whole]
        write(path, RECORDS[whole:])
        assert path.read_bytes() == data


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path, monkeypatch):
    """Its rest arrives just after the file was read."""
    path = tmp_path / "part-a.jsonl"
    write(path, RECORDS)
    data, read = path.read_bytes(), type(path).read_bytes

    def growing(self):
        found = read(self)
        self.write_bytes(data)
        return found

    path.write_bytes(data[:-3])
    monkeypatch.setattr(type(path), "read_bytes", growing)
    assert read_records(tmp_path) == RECORDS[:-1]
    assert read_records(tmp_path) == RECORDS


def test_a_torn_block_of_zeros(tmp_path):
    path = tmp_path / "part-a.jsonl"
    write(path, RECORDS[:2])
    path.write_bytes(path.read_bytes() + b"\0" * 50 + b"\n")
    assert read_records(tmp_path) == RECORDS[:2]
    write(path, RECORDS[2:])
    assert read_records(tmp_path) == RECORDS


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "part-a.jsonl"
    path.write_text(json.dumps({"id": 1}) + "\n{\n" + json.dumps({"id": 2}) + "\n")
    with pytest.raises(ValueError, match="part-a.jsonl line 2 is not a record"):
        read_records(tmp_path)


def test_one_writer_at_a_time(tmp_path):
    pytest.importorskip("fcntl")
    with RecordFile(tmp_path / "part-a.jsonl") as file:
        file.append({})
        with pytest.raises(ValueError, match="is being written by another run"):
            RecordFile(tmp_path / "part-a.jsonl")
    write(tmp_path / "part-a.jsonl", [{}])
    assert read_records(tmp_path) == [{}, {}]


def test_other_files_of_the_folder_are_left_alone(tmp_path):
    (tmp_path / "tables.txt").write_text("x")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "mine.jsonl").write_text('{"id": "a", "prompt": "Hello"}\n')
    assert read_records(tmp_path) == []
