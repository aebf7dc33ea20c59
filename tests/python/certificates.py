"""Certificates for tests of TLS, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    cert: Path
    key: Path


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def make_authority(folder: Path, name: str = "authority") -> Identity:
    """A certificate that may sign others."""
    made = Identity(folder / f"{name}.pem", folder / f"{name}.key")
    subject = ["-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE"]
    _openssl(
        *["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
        *["-days", "30", "-keyout", made.key, "-out", made.cert, *subject],
    )
    return made


def make_signed(
    authority: Identity, folder: Path, name: str, *, hosts: str = "", days: int = 30
) -> Identity:
    """A certificate for `hosts` ("DNS:localhost,IP:127.0.0.1"). Negative days: it has expired."""
    made = Identity(folder / f"{name}.pem", folder / f"{name}.key")
    request = folder / f"{name}.csr"
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={hosts}\n" if hosts else "")
    _openssl(
        *["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
        *["-keyout", made.key, "-out", request, "-subj", f"/CN={name}"],
    )
    _openssl(
        *["x509", "-req", "-in", request, "-CA", authority.cert, "-CAkey", authority.key],
        *["-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", made.cert],
    )
    return made
