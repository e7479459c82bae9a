//! `payguard keys`: how keys spread over shards.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;

use payguard_model::key_distribution::{load_by_shard, skew};
use payguard_model::key_group::{default_max_parallelism, shard_of};
use payguard_model::{KEY_GROUPS, key_group};

use crate::Failure;
use crate::text::grouped;

/// The generator's merchants: the first gets 30 % of the payments, 49 others share the rest.
const HOT_MERCHANT_WEIGHT: u64 = 21;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shards to compare
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8])]
    shards: Vec<u32>,
    /// Key groups: the greatest number of shards there can ever be
    #[arg(long, default_value_t = KEY_GROUPS)]
    groups: u32,
    /// File with one key a line, optionally a tab and its weight [default: the generator's 50 merchants]
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Show where one key goes instead
    #[arg(long)]
    key: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.groups == 0 {
        return Err("--groups must be at least 1".into());
    }
    if let Some(shards) = args.shards.iter().find(|s| **s == 0 || **s > args.groups) {
        return Err(format!("--shards must be 1 to {}, got {shards}", args.groups).into());
    }
    if let Some(key) = &args.key {
        show_key(args, key);
        return Ok(ExitCode::SUCCESS);
    }
    let weights = match &args.keys {
        Some(path) => read_weights(path)?,
        None => merchants(),
    };
    say!("{} keys in {} key groups", grouped(weights.len() as u64), args.groups);
    for shards in &args.shards {
        let weight = |key: &str| weights.get(key).copied().unwrap_or(0);
        let keys = load_by_shard(weights.keys(), |_| 1, *shards, args.groups);
        let load = load_by_shard(weights.keys(), weight, *shards, args.groups);
        say!("\n{shards} shards, skew {:.2} (1.00 is even)", skew(&load, *shards));
        let total: u64 = load.values().sum();
        for (shard, weight) in &load {
            let share = *weight as f64 * 100.0 / total.max(1) as f64;
            say!("  shard {shard:3}  {:8} keys  {share:5.1} % of the load", keys.get(shard).unwrap_or(&0));
        }
    }
    let largest = args.shards.iter().max().copied().unwrap_or(1);
    say!(
        "\n{} key groups would suit up to {largest} shards; they cannot be changed while there is state",
        default_max_parallelism(largest)
    );
    Ok(ExitCode::SUCCESS)
}

fn show_key(args: &Args, key: &str) {
    let group = key_group(key, args.groups);
    say!("{key}: key group {} of {}", group.0, args.groups);
    for shards in &args.shards {
        say!("  {shards} shards: shard {}", shard_of(group, *shards, args.groups));
    }
}

fn merchants() -> BTreeMap<String, u64> {
    (0..50).map(|i| (format!("m-{i:04}"), if i == 0 { HOT_MERCHANT_WEIGHT } else { 1 })).collect()
}

fn read_weights(path: &PathBuf) -> Result<BTreeMap<String, u64>, Failure> {
    let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut weights = BTreeMap::new();
    for (n, line) in std::io::BufReader::new(file).lines().enumerate() {
        let line = line?;
        let (key, weight) = match line.split_once('\t') {
            Some((key, weight)) => {
                let parsed = weight.trim().parse();
                (key, parsed.map_err(|_| format!("{}:{}: `{weight}` is not a weight", path.display(), n + 1))?)
            }
            None => (line.as_str(), 1),
        };
        *weights.entry(key.to_owned()).or_insert(0) += weight;
    }
    if weights.is_empty() {
        return Err(format!("{}: no keys", path.display()).into());
    }
    Ok(weights)
}
