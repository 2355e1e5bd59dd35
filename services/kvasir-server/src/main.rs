//! The Kvasir server.

#![forbid(unsafe_code)]

use std::{io::Write, process::ExitCode};

use kvasir_server::{
    Config, EXIT_CONFIG, Layers, USAGE, listen, rebuild_index, run, shutdown_signal, telemetry,
};

fn main() -> ExitCode {
    let layers = Layers::from_process().with_arguments(std::env::args().skip(1));
    let (print, rebuild, help, version) = (layers.print, layers.rebuild, layers.help, layers.version);
    if help || version {
        return say(if help { USAGE } else { concat!("kvasir-server ", env!("CARGO_PKG_VERSION")) });
    }
    if layers.example {
        return say(&Config::default().to_example());
    }
    let config = match layers.load() {
        Ok(config) => config,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    if print {
        return say(&config.to_toml());
    }
    telemetry::init(&config.log);
    let served =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(anyhow::Error::from);
    let served = served.and_then(|runtime| {
        runtime.block_on(async {
            if rebuild {
                let done = rebuild_index(&config, |now| {
                    if now.objects.is_multiple_of(1_000) {
                        tracing::info!(?now, "rebuilding");
                    }
                });
                tracing::info!(done = ?done.await?, "the hot index is rebuilt");
                return Ok(());
            }
            let listener = listen(&config).await?;
            run(config, listener, shutdown_signal()).await.map_err(anyhow::Error::from)
        })
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> ExitCode {
    // A closed pipe is no error of ours.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    ExitCode::SUCCESS
}
