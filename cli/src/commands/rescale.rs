//! `payguard rescale`: another number of shards for a stage, while payments flow.

use std::process::ExitCode;
use std::time::Instant;

use payguard_local::rescale::rescale;
use payguard_topology::payguard;
use serde_json::json;

use crate::Failure;
use crate::config::ConfigArgs;
use crate::session::{Place, on_folder};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The stage: dedup, window, combine, rules, match or enrich
    stage: String,
    /// Its shards from now on, 1 to 128
    #[arg(value_name = "SHARDS")]
    to: u32,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args, config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let config = config.load_of(&args.place.state)?;
    let topology = payguard(&config);
    let (done, elapsed) = on_folder(&args.place.state, &config, async |env| {
        let started = Instant::now();
        let done = rescale(&config, &topology, env, &args.stage, args.to).await?;
        Ok((done, started.elapsed()))
    })?;
    let (from, to) = (done.from, done.to);
    if args.place.json {
        say!(
            "{}",
            json!({
                "stage": args.stage, "from": from.shards, "to": to.shards, "generation": to.generation,
                "pause_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            })
        );
    } else if from == to {
        say!("{} has {} shards already", args.stage, to.shards);
    } else {
        say!(
            "{}: {} -> {} shards (generation {}); no task of it worked for {:.2} s at most",
            args.stage,
            from.shards,
            to.shards,
            to.generation,
            elapsed.as_secs_f64()
        );
    }
    Ok(ExitCode::SUCCESS)
}
