"""What is a secret by its shape alone, whatever it is called: tokens of known services, keys, long random texts."""

from __future__ import annotations

import base64
import binascii
import re

from areal_callbacks.writers.secret_names import count_chunks, is_plain

# Each begins where no letter or digit precedes. Services announce these prefixes so that scanners find leaked tokens.
_TOKENS = (
    r"hf_[A-Za-z0-9]{20,}",
    r"api_org_[A-Za-z0-9]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_\w{20,}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas|ffct)-[\w-]{20,}",
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])",
    r"AIza[\w-]{30,}",
    r"ya29\.[\w.-]{20,}",
    r"GOCSPX-[\w-]{20,}",
    r"1//0[\w-]{20,}",
    r"xox[abeoprs]-[\w.-]{10,}",
    r"xapp-[0-9]-[\w-]{10,}",
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",
    r"whsec_[\w+/=]{20,}",
    r"nvapi-[\w-]{20,}",
    r"(?:r8|gsk|fw|pcsk|sbp|sb_secret|tgp_v1|wandb_v1|lsv2_(?:pt|sk)|figd|ntn|csk|pul|tvly)[_-][\w-]{20,}",
    r"(?:pplx|xai|csk)-[A-Za-z0-9]{20,}",
    r"(?:ntn|secret)_[A-Za-z0-9]{40,}",
    r"dapi[0-9a-f]{32}(?:-\d)?",
    r"local-[0-9a-f]{40}",
    r"KGAT_[0-9a-f]{32}",
    r"do[opr]_v1_[0-9a-f]{64}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[\w-]{50,}",
    r"rubygems_[0-9a-f]{48}",
    r"dckr_(?:pat|oat)_[\w-]{20,}",
    r"hv[sbr]\.[\w-]{20,}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}",
    r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",
    r"key-[0-9a-f]{32}",
    r"[0-9a-f]{32}-us\d{1,2}(?!\w)",
    r"SK[0-9a-f]{32}",
    r"sq0[a-z]{3}-[\w-]{22,}",
    r"shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32}",
    r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}",
    r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    r"AT(?:ATT|CTT)3[\w=-]{60,}",
    r"glc_[\w+/=]{30,}",
    r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}",
    r"NRAK-[A-Z0-9]{27}",
    r"sntry[su]_[\w+/=-]{30,}",
    r"pscale_(?:tkn|pw|oauth)_[\w.-]{32,}",
    r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    r"HRKU-[\w-]{30,}",
    r"AGE-SECRET-KEY-1[0-9A-Z]{50,}",
    r"LTAI[A-Za-z0-9]{12,30}",
    r"AKID[A-Za-z0-9]{30,}",
    r"AKLT[\w-]{30,}",
    r"ms-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"[0-9a-f]{32}\.[A-Za-z0-9]{16}(?![A-Za-z0-9])",
    r"[0-9]{8,10}:AA[\w-]{30,}",
    r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}",
    r"FlyV1 fm\d_[\w+/=,-]{20,}",
    r"EAA[A-Za-z0-9]{60,}",
    r"sl\.[\w-]{60,}",
    r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)*",  # JWT, JWE
)
_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_TOKENS)})")
_SK = re.compile(r"(?<![A-Za-z0-9])[sar]k-(?:[A-Za-z0-9]+-)*[\w-]{20,}+")
_PEM = re.compile(
    r"-----BEGIN (?P<of>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END (?P=of)-----|\Z)", re.DOTALL
)
_RUN = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{32,}+={0,2}")
_PIECES = re.compile(r"[A-Za-z0-9]{7,}")
_CHECKSUM = re.compile(r"(?:sha\d{1,3}|md5)[-:]", re.IGNORECASE)
_SHORTEST = 16
_LONGEST_MEAN = 2.6
_AWS_SECRET = 40
_LONGEST_MEAN_AT_ITS_LENGTH = 3.2


def hide_shapes(text: str, replacement: str) -> str:
    """``text`` with every private key, known token and long random run replaced."""
    text = _PEM.sub(replacement, text) if "PRIVATE KEY" in text else text
    text = _TOKEN.sub(replacement, text)
    text = _SK.sub(lambda match: match[0] if is_plain(match[0]) else replacement, text)
    return _RUN.sub(lambda match: replacement if _is_random(match) else match[0], text)


def _is_random(run: re.Match[str]) -> bool:
    """Whether most of a run lies in pieces that mix capitals, small letters and digits as no word or name does.

    A checksum that says so, and what is text or JSON in base64, is none. Hexadecimal numbers never are: a hash and a
    secret look alike there, and only the name tells them apart.
    """
    if _CHECKSUM.match(run[0]) or _CHECKSUM.search(run.string, max(0, run.start() - 7), run.start()):
        return False
    longest = _LONGEST_MEAN_AT_ITS_LENGTH if len(run[0]) == _AWS_SECRET else _LONGEST_MEAN
    pieces = _PIECES.findall(run[0])
    size = sum(map(len, pieces))
    if size < _SHORTEST or 2 * size < len(run[0]) or size >= longest * sum(map(count_chunks, pieces)):
        return False
    is_mixed = all(any(map(kind, "".join(pieces))) for kind in (str.isupper, str.islower, str.isdigit))
    return is_mixed and decode_text(run[0]) is None


def decode_text(run: str) -> str | None:
    """What a run in base64 says, if that is printable text."""
    try:
        text = base64.b64decode(run + "=" * (-len(run) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return text if text.isprintable() else None
