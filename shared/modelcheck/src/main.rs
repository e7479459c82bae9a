//! Checks the models of the commit protocol and prints what was found.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Parser;
use payguard_modelcheck::{COMPLETE, Checked, Config, Event, Mutant, Rule, check, noticed_by};

/// Checks models of the commit protocol: every run of two tasks within bounds.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Larger models: minutes instead of a minute, and a few gigabytes of memory.
    #[arg(long)]
    long: bool,
    /// Only the model of this name.
    #[arg(long, value_name = "MODEL")]
    only: Option<String>,
    /// Break the rules of the protocol one by one and show which property notices.
    #[arg(long, conflicts_with_all = ["long", "only"])]
    teeth: bool,
    /// With --teeth: print the runs that show it.
    #[arg(long, requires = "teeth")]
    runs: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.teeth {
        return verdict(teeth(args.runs));
    }
    let mut configs = if args.long { Config::long() } else { Config::short() };
    if let Some(only) = &args.only {
        let names: Vec<&str> = configs.iter().map(|c| c.name).collect();
        if !names.contains(&only.as_str()) {
            eprintln!("there is no model `{only}`; there are: {}", names.join(", "));
            return ExitCode::FAILURE;
        }
        configs.retain(|config| config.name == only);
    }
    verdict(models(&configs))
}

fn verdict(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks the models; true when every property holds.
fn models(configs: &[Config]) -> bool {
    println!("{:<12} {:>10} {:>6} {:>8}", "model", "states", "depth", "seconds");
    let mut counts: BTreeMap<Event, u64> = BTreeMap::new();
    let mut good = true;
    for config in configs {
        let checked = check(*config);
        println!("{checked}");
        good &= checked.holds();
        for (event, count) in &checked.counts {
            *counts.entry(*event).or_default() += count;
        }
    }
    println!("\nproperties");
    Rule::ALL.iter().for_each(|rule| println!("  {}", rule.name()));
    println!("  {COMPLETE}");
    println!("\nsteps in which ...");
    counts.iter().for_each(|(event, count)| println!("  {count:>12}  {}", event.text()));
    good
}

/// Breaks every rule; true when each is noticed by the property that should.
fn teeth(runs: bool) -> bool {
    println!("{:<24} {:<12} {:>6}  noticed by", "broken rule", "model", "steps");
    let mut good = true;
    for mutant in Mutant::ALL {
        let checked = check(mutant.model());
        let (noticed, line) = notice(mutant, &checked);
        println!("{:<24} {line}", format!("{mutant:?}"));
        if runs {
            println!("{checked}\n");
        }
        good &= noticed;
    }
    good
}

fn notice(mutant: Mutant, checked: &Checked) -> (bool, String) {
    let by = noticed_by(mutant);
    match checked.broken.get(by.name()) {
        Some(story) => (true, format!("{:<12} {:>6}  {}", checked.config.name, story.steps, by.name())),
        None => (false, format!("{:<12} {:>6}  NOT by {}", checked.config.name, "", by.name())),
    }
}
