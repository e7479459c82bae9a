//! The ledger and the state table on DynamoDB.

mod cancellation;
mod collect;
mod item;
mod ledger;
mod state;

pub use ledger::DynamoLedger;
pub use state::DynamoStateTable;

/// Names of the two tables. One pair serves any number of pipelines: every key begins with the pipeline's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tables {
    /// The coordination table.
    pub ledger: String,
    /// The state table.
    pub state: String,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables { ledger: "payguard-ledger".to_owned(), state: "payguard-state".to_owned() }
    }
}
