//! `payguard stack`: the embedded stores for other processes.

use std::path::PathBuf;
use std::process::ExitCode;

use payguard_aws::client::{EMBEDDED_ACCESS_KEY, EMBEDDED_REGION, EMBEDDED_SECRET_KEY};
use payguard_local::embedded::{EmbeddedStack, StackOptions};

use crate::Failure;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for the durable state [default: in memory]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Port of DynamoDB on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    dynamodb_port: u16,
    /// Port of S3 on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 9000)]
    s3_port: u16,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<ExitCode, Failure> {
    let options = StackOptions { dir: args.state.clone(), dynamodb_port: args.dynamodb_port, s3_port: args.s3_port };
    let stack = EmbeddedStack::start(options).await?;
    say!("# environment of a process that uses these stores");
    say!("export AWS_ENDPOINT_URL_DYNAMODB={}", stack.dynamodb_endpoint());
    say!("export AWS_ENDPOINT_URL_S3={}", stack.s3_endpoint());
    say!("export AWS_ACCESS_KEY_ID={EMBEDDED_ACCESS_KEY}");
    say!("export AWS_SECRET_ACCESS_KEY={EMBEDDED_SECRET_KEY}");
    say!("export AWS_REGION={EMBEDDED_REGION}");
    say!("export PAYGUARD_LEDGER_TABLE={}", stack.tables().ledger);
    say!("export PAYGUARD_STATE_TABLE={}", stack.tables().state);
    say!("export PAYGUARD_SEGMENT_BUCKET={}", stack.bucket());
    eprintln!("serving until interrupted (Ctrl-C)");
    tokio::signal::ctrl_c().await?;
    stack.stop().await;
    Ok(ExitCode::SUCCESS)
}
