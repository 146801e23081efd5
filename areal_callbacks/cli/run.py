"""``areal-callbacks run``: any command, with the metrics of whatever training it starts."""

from __future__ import annotations

from typing import Any

import click

_SWITCHES = {
    "throughput": "Tokens, seconds and their rates.",
    "moe-balance": "Routed loads of experts.",
    "flops": "Estimated FLOPs and MFU.",
    "ppo": "PPO diagnostics.",
    "resume-totals": "Continue the totals of a checkpoint.",
    "report": "Write report.html at the end.",
}


def _add_switches(command: Any) -> Any:
    for name, text in reversed(_SWITCHES.items()):
        command = click.option(f"--{name}/--no-{name}", default=None, help=text)(command)
    return command


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--config", metavar="FILE", help="A YAML file with configuration keys.")
@click.option("--every", type=int, metavar="N", help="Export at every N-th log of the host.")
@click.option("--output-dir", metavar="FOLDER", help="Of the files; else beside the host's output.")
@_add_switches
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(config: str | None, words: tuple[str, ...], **options: Any) -> None:
    """Run a command and measure the training that it starts.

    Every Python process below the command observes the trainers that it makes: Hugging Face, Accelerate, Lightning,
    Fabric, Megatron-LM. Exit code, signals and streams are the command's. If nothing was trained, one line says so.

    \b
    Example:
      areal-callbacks run --every 10 -- trl sft --config sft.yaml
    """
    from areal_callbacks.config import MetricsConfig
    from areal_callbacks.run.environment import observed_processes
    from areal_callbacks.run.process import end_like, run_command

    try:
        settings = MetricsConfig.make(config, **options).to_dict()
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    try:
        with observed_processes(settings):
            code = run_command(words)
    except OSError as error:
        click.echo(f"areal-callbacks run: {words[0]}: {error.strerror}", err=True)
        code = 127 if isinstance(error, FileNotFoundError) else 126  # a shell's codes for it
    end_like(code)
