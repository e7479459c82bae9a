//! `payguard migrate`: the tables in PostgreSQL.

use std::process::ExitCode;

use payguard_postgres::{DatabaseSettings, Migration, migrate};

use crate::Failure;

#[derive(clap::Args)]
#[command(after_help = "\
The database is the one of PAYGUARD_DB_URL, PAYGUARD_DB_USER, PAYGUARD_DB_PASSWORD and PAYGUARD_DB_CA_FILE; the user must
be allowed to make tables.")]
pub(crate) struct Args {
    /// Also put in the 50 merchants of the demonstration; those that are there stay as they are
    #[arg(long)]
    demo_merchants: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let settings = DatabaseSettings::read(&std::env::vars().collect())?;
    let demo = args.demo_merchants.then_some(Migration::DEMO_MERCHANTS);
    let migrations: Vec<Migration> = Migration::TABLES.into_iter().chain(demo).collect();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(migrate(&settings, &migrations))?;
    for migration in migrations {
        say!("{} is applied to {}", migration.name, settings.place());
    }
    Ok(ExitCode::SUCCESS)
}
