//! Why a function does not start, and why an invocation fails.

use std::fmt;

use lambda_runtime::Diagnostic;
use payguard_aws::event::StageEvent;

/// The function cannot start: its settings or the machine are wrong.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A variable that is needed is not set.
    #[error("{name} is not set: {purpose}")]
    Missing {
        /// The variable.
        name: &'static str,
        /// What it is for, with an example.
        purpose: &'static str,
    },
    /// A variable has a value that cannot be used.
    #[error("{name}={value}: {detail}")]
    Unusable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is expected.
        detail: &'static str,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] payguard_topology::ConfigError),
    /// The pipeline cannot be worked on.
    #[error(transparent)]
    Begun(#[from] payguard_topology::begun::BegunError),
    /// The sink cannot be opened.
    #[error(transparent)]
    Sink(#[from] payguard_engine::StoreError),
    /// The directory of merchants cannot be opened.
    #[error("the directory of merchants cannot be opened: {0}")]
    Directory(Box<dyn std::error::Error + Send + Sync>),
    /// The settings of Kafka cannot be used.
    #[error(transparent)]
    Kafka(Box<dyn std::error::Error + Send + Sync>),
    /// The database cannot be used.
    #[error("the database cannot be used: {0}")]
    Database(Box<dyn std::error::Error + Send + Sync>),
    /// The asynchronous runtime cannot be made.
    #[error("the asynchronous runtime does not start: {0}")]
    Tokio(#[from] std::io::Error),
    /// The connection to Lambda failed.
    #[error("the Lambda runtime interface failed: {0}")]
    Runtime(lambda_runtime::Error),
}

/// An invocation failed: Lambda has to repeat it. What was committed stays committed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The event is not one that this function handles.
    #[error("the function of stage {stage} does not handle this event: {detail}")]
    WrongEvent {
        /// The function's stage.
        stage: String,
        /// What came.
        detail: String,
    },
    /// Records of some partitions were not processed.
    #[error("{}", list("partition", .0))]
    Partitions(Vec<Failure>),
    /// Some tasks failed.
    #[error("{}", list("task", .0))]
    Tasks(Vec<Failure>),
    /// The heads could not be read.
    #[error("the heads of the tasks cannot be read: {0}")]
    Heads(payguard_engine::StoreError),
    /// Other functions could not be invoked.
    #[error("{failed} invocations of other functions failed; see the warnings before")]
    Invocations {
        /// How many.
        failed: u64,
    },
    /// Not everything that nobody needs could be removed.
    #[error("{failed} steps of the collection failed; see the warnings before; the last: {last}")]
    Collection {
        /// How many.
        failed: usize,
        /// The last failure.
        last: payguard_engine::StoreError,
    },
}

/// A task or partition that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its name.
    pub name: String,
    /// Why.
    pub cause: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.cause)
    }
}

fn list(what: &str, failures: &[Failure]) -> String {
    let failures: Vec<String> = failures.iter().map(|failure| format!("{what} {failure}")).collect();
    failures.join("; ")
}

impl HostError {
    /// The error for an event that is not for the function of `stage`.
    #[must_use]
    pub fn wrong(stage: &str, event: &StageEvent) -> HostError {
        let detail = match event {
            StageEvent::Kafka(_) => "records of Kafka".to_owned(),
            StageEvent::Wake(_) => "a wake-up".to_owned(),
            StageEvent::Heartbeat(_) => "a heartbeat".to_owned(),
            StageEvent::Schedule(event) => format!("a schedule of {}", event.source),
        };
        HostError::WrongEvent { stage: stage.to_owned(), detail }
    }

    /// Name of the kind of error, stable: metrics and tests go by it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            HostError::WrongEvent { .. } => "WrongEvent",
            HostError::Partitions(_) => "PartitionFailed",
            HostError::Tasks(_) => "TaskFailed",
            HostError::Heads(_) => "HeadsUnreadable",
            HostError::Invocations { .. } => "InvocationFailed",
            HostError::Collection { .. } => "CollectionFailed",
        }
    }
}

impl From<HostError> for Diagnostic {
    fn from(error: HostError) -> Diagnostic {
        Diagnostic { error_type: error.kind().to_owned(), error_message: error.to_string() }
    }
}
