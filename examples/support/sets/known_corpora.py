"""Corpora that the examples fetch by name, checked by their SHA-256."""

import hashlib
import os
import urllib.request

from keras_transformer.files import whole_file

# Name: (address, checksums as `sha256sum` prints them). Addresses name a commit, so that the files
# cannot change.
_GITHUB = "https://raw.githubusercontent.com"
CORPORA = {
    # Raw English, German and French captions; non-commercial research.
    "multi30k": (
        f"{_GITHUB}/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw",
        """
        9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8  test_2016_flickr.de.gz
        611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9  test_2016_flickr.en.gz
        6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90  test_2016_flickr.fr.gz
        a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee  test_2017_flickr.de.gz
        76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074  test_2017_flickr.en.gz
        3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496  test_2017_flickr.fr.gz
        726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6  train.de.gz
        d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f  train.en.gz
        622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c  train.fr.gz
        f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a  val.de.gz
        14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28  val.en.gz
        ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9  val.fr.gz
        """,
    ),
    # English and German, lowercased, tokenised and cut by BPE ("@@ "): read with undo_bpe.
    "multi30k-bpe": (
        f"{_GITHUB}/LividWo/Revisit-MMT/dc368d0af8d60270b8f4aaa2f3ac58771c551da3"
        "/data/multi30k-en-de",
        """
        0ffe3e3bac16e6aa33ef0dd6a7dca81587479b0d18dff0db2a92ac3f32b00c86  train.en
        b2c74def7ec129f7ea7023a51501c77174c377ef06c6ccc2f031adcfb5cfadbd  train.de
        193d0d18fef5d1bc9d1cddafa13a644de3c5d6a24b45ac44476dcc5e96bfac6e  valid.en
        eeb95680d6a06eafb13e3494eed9f9fa99783b892f4a3c72dd36e7ce2e000b68  valid.de
        13b5fe3f92f78c54446d66afcaaa0a00a33ab653a8411f16812c9c5ca3795d6d  test.2016.en
        375c20d50f4c486149a78dfcfb161a430a04ddabe2b7d150f0c7811dc455ac60  test.2016.de
        5252390a58d57bce8d6a69a973e4908e98c7b70d3fc7ccc9c3963747ae8b177d  test.2017.en
        9deefbe5705b60c3b5a790146e232b411a0da0420fd194ed6f6ad3a2674340a0  test.2017.de
        """,
    ),
}


def fetch_corpus(name, folder, corpora=CORPORA):
    """Fetches the missing files of a known corpus from the network.

    Each file is checked against its SHA-256, written under another name and then renamed. An
    existing file that differs is an error and is never overwritten. (`keras.utils.get_file`
    overwrites it, leaves a file that fails the check in place, and writes to /tmp if the folder is
    missing.) The corpora's own terms apply.

    Args:
        name: str, key of `corpora`.
        folder: str or path-like, made if missing.
        corpora: dict from name to (address, lines of "checksum  file"). Defaults to `CORPORA`.

    Returns:
        Dict from file name to path.

    Raises:
        ValueError: if the name is unknown, or a file's checksum is not the expected one.
        OSError: if a file cannot be fetched.
    """
    if name not in corpora:
        raise ValueError(f"unknown corpus {name!r}; known are {sorted(corpora)}.")
    address, checksums = corpora[name]
    os.makedirs(folder, exist_ok=True)
    paths = {}
    for expected, file in (line.split() for line in checksums.strip().splitlines()):
        path = paths[file] = os.path.join(folder, file)
        if os.path.exists(path):
            with open(path, "rb") as known:
                _check_sum(path, known.read(), expected)
            continue
        url = f"{address}/{file}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                content = answer.read()
        except OSError as error:
            raise OSError(
                f"cannot fetch {url}: {error}. Without a network put the file at {path} yourself."
            ) from error
        _check_sum(url, content, expected)
        with whole_file(path) as aside:
            aside.write_bytes(content)
    return paths


def _check_sum(where, content, expected):
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(
            f"{where} has the SHA-256 {found}, expected {expected}. If it is a local file that was "
            "changed or cut short, delete it and fetch it again."
        )
