"""The data sets' files: what is read, and what is refused."""

import dataclasses
import gzip
import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from sojourn.errors import DataNotFound, InvalidFile, InvalidInput, UnknownName
from sojourn.training.data import sets as data
from sojourn.training.data.formats import PublishedFile, read_binary, read_idx, read_pickled
from sojourn.training.data.sets import CropAndFlip, load_dataset

TRAIN_IMAGES = "train-images-idx3-ubyte.gz"


def idx_header(shape):
    """How an IDX file of unsigned bytes of this shape begins."""
    return bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()


def idx_file(content):
    return PublishedFile("labels", 3, hashlib.sha256(content).hexdigest())


ROOT = os.environ.get("SOJOURN_DATA")
FOLDERS = {"cifar-10": "cifar-10-batches-bin", "cifar-100": "cifar-100-binary"}


def published(name):
    """The folder that holds the real files, or skip."""
    folder = Path(ROOT or "nowhere") / FOLDERS.get(name, name)
    if not folder.is_dir():
        pytest.skip(f"{name} is not in $SOJOURN_DATA")
    return folder


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No data set is found but in the returned folder."""
    monkeypatch.delenv("SOJOURN_DATA", raising=False)
    monkeypatch.setattr(data, "DEBIAN_ROOT", tmp_path / "debian")
    return tmp_path


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    digits, theirs = load_dataset("digits"), load_digits()
    labels = torch.cat([digits.train[1], digits.test[1]])
    assert labels.bincount().tolist() == np.bincount(theirs.target).tolist()
    held_out = np.flatnonzero(theirs.target == 3)[4::5]
    ours = digits.test[0][digits.test[1] == 3].flatten(1)
    scale = theirs.data[held_out].std() / ours.std(correction=0).item()
    shifted = ours.numpy() * scale
    np.testing.assert_allclose(
        shifted - shifted.mean(), theirs.data[held_out] - theirs.data[held_out].mean(), atol=1e-4
    )


def test_digits_are_split_deterministically_and_by_class():
    digits = load_dataset("digits")
    train, test = digits.train[1].bincount(), digits.test[1].bincount()
    assert torch.equal(load_dataset("digits").train[0], digits.train[0])
    assert (test / (train + test) - 0.2).abs().max() < 0.005
    assert digits.train[0].mean().abs() < 0.01
    assert abs(float(digits.train[0].std()) - 1) < 0.01


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("fashion-mnist", (1, 28, 28), 10),
        ("kmnist", (1, 28, 28), 10),
        ("cifar-10", (3, 32, 32), 10),
        ("cifar-100", (3, 32, 32), 100),
    ],
)
def test_published_files_are_read_and_normalised(name, shape, classes):
    published(name)
    loaded = load_dataset(name)
    images, labels = loaded.train
    assert loaded.shape == shape
    assert torch.equal(labels.bincount(), torch.full((classes,), len(labels) // classes))
    assert torch.equal(loaded.test[1].bincount(), torch.full((classes,), 10000 // classes))
    assert images.mean((0, 2, 3)).abs().max() < 1e-3
    assert (images.std((0, 2, 3)) - 1).abs().max() < 1e-3
    assert images.amin((0, 2, 3)).tolist() == pytest.approx(loaded.black, rel=1e-6)


@pytest.mark.data
@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_other_layouts_and_plain_files_are_found(nowhere, monkeypatch, folder):
    source = published("fashion-mnist")
    target = nowhere / "there" / folder
    target.mkdir(parents=True)
    for file in source.glob("*.gz"):
        (target / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    monkeypatch.setenv("SOJOURN_DATA", str(nowhere / "there"))
    assert load_dataset("fashion-mnist").train[0].shape == (60000, 1, 28, 28)


@pytest.mark.data
def test_a_flipped_byte_is_noticed(nowhere):
    source = published("kmnist")
    folder = nowhere / "kmnist"
    folder.mkdir()
    for file in source.glob("*.gz"):
        content = bytearray(gzip.decompress(file.read_bytes()))
        content[-1] ^= file.name == "t10k-labels-idx1-ubyte.gz"
        (folder / file.stem).write_bytes(content)
    with pytest.raises(InvalidFile, match=r"t10k-labels-idx1-ubyte: damaged"):
        load_dataset("kmnist", nowhere)


@pytest.mark.parametrize("name", ["fashion-mnist", "kmnist", "cifar-10", "cifar-100"])
def test_a_missing_data_set_says_where_to_get_it_and_where_to_put_it(nowhere, name):
    with pytest.raises(
        DataNotFound, match=rf"{name} is not on this machine. Get it from"
    ) as raised:
        load_dataset(name)
    assert "--data-dir or in $SOJOURN_DATA" in str(raised.value)


def test_unknown_names_and_folders(tmp_path):
    with pytest.raises(UnknownName, match="did you mean 'kmnist'"):
        load_dataset("kmnst")
    with pytest.raises(InvalidInput, match="is not a folder"):
        load_dataset("kmnist", tmp_path / "no")


def test_a_file_of_four_that_is_missing_is_named(nowhere):
    folder = nowhere / "kmnist"
    folder.mkdir()
    (folder / TRAIN_IMAGES).write_bytes(b"")
    with pytest.raises(InvalidFile, match=r"'train-labels-idx1-ubyte.gz' is missing"):
        load_dataset("kmnist", nowhere)


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / TRAIN_IMAGES
    path.write_bytes(gzip.compress(idx_header((60000, 28, 28)) + bytes(60000 * 784))[:5000])
    with pytest.raises(InvalidFile, match=f"{TRAIN_IMAGES}: cut short or damaged"):
        read_idx(path, PublishedFile(TRAIN_IMAGES, 60000, "0" * 64), (28, 28))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_idx_file_is_read_plain_or_compressed(tmp_path, suffix):
    content = idx_header((3,)) + bytes([7, 8, 9])
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    assert read_idx(path, idx_file(content)).tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut short: 0 bytes where 11"),
        (b"\x00\x00\x08\x03" + bytes(7), "damaged or not the published file.*Nothing was read"),
        (idx_header((4,)) + bytes(3), "damaged or not the published file"),
        (idx_header((3,)) + bytes(2), "cut short: 10 bytes where 11"),
        (idx_header((3,)) + bytes(4), "too long: 12 bytes where 11"),
        (idx_header((3,)) + bytes(3), "SHA256"),
        (idx_header((3,))[:6], "cut short: 6 bytes where 11"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_wrong_idx_files_are_refused(tmp_path, content, message, suffix):
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(InvalidFile, match=message):
        read_idx(path, PublishedFile("labels", 3, "0" * 64))


def test_a_file_that_is_not_gzip_is_refused(tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(InvalidFile, match=r"labels.gz: cut short or damaged"):
        read_idx(path, PublishedFile("labels", 3, "0" * 64))


def test_cifar_binary_record_layout(tmp_path):
    records = np.zeros((2, 2 + 3072), np.uint8)
    records[:, 0], records[:, 1] = [1, 2], [30, 40]
    records[1, 2 + 1024 + 32 * 5 + 7] = 255
    path = tmp_path / "train.bin"
    path.write_bytes(records.tobytes())
    expected = PublishedFile("train.bin", 2, hashlib.sha256(records.tobytes()).hexdigest())
    images, labels = read_binary(path, expected, label_bytes=2)
    assert labels.tolist() == [30, 40]
    assert np.argwhere(images).tolist() == [[1, 1, 5, 7]]


def test_wrong_cifar_binary_files_are_refused(tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(bytes(3073))
    with pytest.raises(InvalidFile, match=r"train.bin: cut short: 3073 bytes where 6146"):
        read_binary(path, PublishedFile("train.bin", 2, "0" * 64), label_bytes=1)
    with pytest.raises(InvalidFile, match=r"train.bin: damaged"):
        read_binary(path, PublishedFile("train.bin", 1, "0" * 64), label_bytes=1)


class Trap:
    """A pickle of this runs code when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_with_a_foreign_checksum_is_never_opened(nowhere):
    sprung = nowhere / "sprung"
    folder = nowhere / "cifar-10-batches-py"
    folder.mkdir()
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for name in names:
        (folder / name).write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(InvalidFile, match="Nothing was read from it"):
        load_dataset("cifar-10", nowhere)
    assert not sprung.exists()


def test_even_a_pickle_with_the_right_checksum_builds_only_arrays(tmp_path):
    sprung = tmp_path / "sprung"
    content = pickle.dumps(Trap(sprung))
    path = tmp_path / "train"
    path.write_bytes(content)
    expected = PublishedFile("train", 1, hashlib.md5(content).hexdigest())
    with pytest.raises(InvalidFile, match=r"not a CIFAR batch \(it asks for"):
        read_pickled(path, expected, label_key=b"labels")
    assert not sprung.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_python_version_is_read(nowhere, monkeypatch, protocol):
    folder = nowhere / "cifar-100-python"
    folder.mkdir()
    files = []
    for name, count in (("train", 4), ("test", 2)):
        pixels = np.arange(count * 3072, dtype=np.uint8).reshape(count, 3072)
        batch = {b"data": pixels, b"fine_labels": list(range(count)), b"coarse_labels": [0] * count}
        content = pickle.dumps(batch, protocol=protocol)
        (folder / name).write_bytes(content)
        files.append(PublishedFile(name, count, hashlib.md5(content).hexdigest()))
    source = data.DATASETS["cifar-100"]
    binary, pickled = source.releases
    made = dataclasses.replace(pickled, files=tuple(files))
    reading = dataclasses.replace(source, releases=(binary, made))
    (images, labels), (test_images, _) = reading.read(nowhere)
    assert labels.tolist() == [0, 1, 2, 3]
    assert images[1, 2, 0, 5] == (3072 + 2048 + 5) % 256
    assert test_images.shape == (2, 3, 32, 32)


def test_crops_and_flips_are_windows_of_the_padded_image():
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(200, 2, 6, 5, generator=generator)
    fill = (-2.0, -3.0)
    augmented = CropAndFlip(fill, padding=2)(images, generator)
    seen = set()
    for image, result in zip(images, augmented, strict=True):
        padded = torch.empty(2, 10, 9)
        padded[0], padded[1] = fill
        padded[:, 2:8, 2:7] = image
        windows = {
            (top, left, flip): window.flip(2) if flip else window
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            for window in [padded[:, top : top + 6, left : left + 5]]
        }
        matches = [key for key, window in windows.items() if torch.equal(window, result)]
        assert matches
        seen.add(matches[0])
    assert len(seen) > 40
    again = torch.Generator().manual_seed(3)
    torch.randn(200, 2, 6, 5, generator=again)
    assert torch.equal(CropAndFlip(fill, padding=2)(images, again), augmented)


def test_images_averaged_down_keep_their_length_and_everything_else():
    whole, small = load_dataset("digits"), load_dataset("digits(4)")
    assert small.shape == (1, 4, 4)
    assert (small.name, small.averaged, small.classes) == ("digits", 2, whole.classes)
    assert torch.equal(small.train[1], whole.train[1])
    blocks = whole.train[0].unfold(2, 2, 2).unfold(3, 2, 2)
    torch.testing.assert_close(small.train[0], 2.0 * blocks.mean(dim=(4, 5)), rtol=1e-5, atol=1e-5)
    assert small.black == pytest.approx([2.0 * value for value in whole.black])
    flat = torch.ones(8, 8)
    assert (2.0 * torch.ones(4, 4)).norm() == pytest.approx(float(flat.norm()))


@pytest.mark.parametrize("text", ["digits(3)", "digits(8)", "digits(0)", "digits(x)"])
def test_a_side_that_does_not_divide_is_refused(text):
    with pytest.raises(InvalidInput, match="Choose among 1, 2, 4, or write digits"):
        load_dataset(text)
    with pytest.raises(UnknownName, match="did you mean 'cifar-10'"):
        load_dataset("cifar10(8)")
