//! Merchant totals in the table `merchant_stats`, exactly once.
//!
//! One statement, and so one transaction, moves the task's row of `payguard_positions` from the batch before to this one and
//! upserts the rows of the batch, if and only if the position moved. Whoever comes second waits for that row and then finds
//! it elsewhere. So nothing has to be undone, no transaction is ever open between two messages, and when an answer was lost
//! the position tells what became of the batch.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use payguard_engine::store::{Sink, SinkBatch, SinkPosition, SinkReply};
use payguard_engine::{StoreError, StoreErrorKind, TaskId};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::error::store_error;
use crate::position::{counters_to_json, inputs_to_json, of_row};
use crate::settings::{Connected, DatabaseSettings};
use crate::totals::Totals;

/// Begins a task's position, unless it has one. `$3` is the batch.
const BEGIN: &str = "INSERT INTO payguard_positions (pipeline, task, seq, inputs, counters)
    VALUES ($1, $2, $3, $4::text::jsonb, $5::text::jsonb)
    ON CONFLICT (pipeline, task) DO NOTHING
    RETURNING seq";

/// Moves a task's position by one batch, unless it is elsewhere. `$3` is the batch.
const MOVE: &str = "UPDATE payguard_positions
    SET seq = $3, inputs = $4::text::jsonb, counters = $5::text::jsonb, updated_at = now()
    WHERE pipeline = $1 AND task = $2 AND seq = $3 - 1
    RETURNING seq";

/// Upserts the rows if the position moved.
const UPSERT: &str = "INSERT INTO merchant_stats
        (merchant_id, window_start_ms, window_end_ms, payment_count, amount_minor)
    SELECT total.* FROM unnest($6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[]) AS total
    WHERE EXISTS (SELECT FROM moved)
    ON CONFLICT (merchant_id, window_start_ms) DO UPDATE
    SET payment_count = EXCLUDED.payment_count, amount_minor = EXCLUDED.amount_minor, updated_at = now()";

const POSITION: &str =
    "SELECT seq, inputs::text, counters::text FROM payguard_positions WHERE pipeline = $1 AND task = $2";

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// How long a sink waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For an answer; the server gives up a statement after that too.
    pub answer: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { connect: Duration::from_secs(3), answer: Duration::from_secs(10) }
    }
}

/// Merchant totals and positions of one pipeline in a database.
///
/// It connects when it is used, so it can be made while the database is down, and finds it again by itself. A connection is
/// used again only after an answer; with an error, or a call that was dropped, it is closed.
pub struct PostgresSink {
    settings: DatabaseSettings,
    pipeline: String,
    patience: Patience,
    idle: Mutex<Option<Connection>>,
}

/// A connection that is closed at once when it is dropped, whatever is under way.
struct Connection(Connected);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.driver.abort();
    }
}

impl PostgresSink {
    /// The sink of `pipeline`, which is not connected yet.
    #[must_use]
    pub fn new(settings: &DatabaseSettings, pipeline: impl Into<String>, patience: Patience) -> PostgresSink {
        let settings = settings.clone().with_patience(patience.connect);
        PostgresSink { settings, pipeline: pipeline.into(), patience, idle: Mutex::default() }
    }

    /// The idle connection, or a new one.
    async fn connection(&self, task: &TaskId) -> Result<Connection, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connection) = idle.filter(|connection| !connection.0.client.is_closed()) {
            return Ok(connection);
        }
        let begin = async {
            let connection = Connection(self.settings.connect().await?);
            let encoding = begin_session(&connection.0.client, self.patience.answer).await?;
            Ok((connection, encoding))
        };
        let (connection, encoding) = self.within("connect", task, self.patience.connect, begin).await?;
        if encoding != "UTF8" {
            let detail = format!("the database has encoding {encoding}, which cannot hold every text: it must be UTF8");
            return Err(StoreError::new(StoreErrorKind::Invalid, "connect", self.target(task), detail));
        }
        Ok(connection)
    }

    fn keep(&self, connection: Connection) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    async fn within<T>(
        &self,
        operation: &'static str,
        task: &TaskId,
        time: Duration,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(time, work).await {
            Ok(result) => result.map_err(|error| store_error(operation, self.target(task), &error)),
            Err(_) => {
                let detail = format!("no answer within {time:?}");
                Err(StoreError::new(StoreErrorKind::Unavailable, operation, self.target(task), detail))
            }
        }
    }

    fn target(&self, task: &TaskId) -> String {
        format!("{} in {} of {}", task, self.settings.place(), self.pipeline)
    }

    async fn position_on(&self, connection: &Connection, task: &TaskId) -> Result<SinkPosition, StoreError> {
        let id = task.to_string();
        let parameters: [Parameter<'_>; 2] = [(&self.pipeline, Type::TEXT), (&id, Type::TEXT)];
        let question = connection.0.client.query_typed(POSITION, &parameters);
        let rows = self.within("read position", task, self.patience.answer, question).await?;
        let Some(row) = rows.first() else { return Ok(SinkPosition::default()) };
        of_row(row.get(0), row.get(1), row.get(2))
            .map_err(|detail| StoreError::new(StoreErrorKind::Corrupt, "read position", self.target(task), detail))
    }

    /// Whether the position was at the batch before, and so has moved.
    async fn write_on(&self, connection: &Connection, task: &TaskId, batch: &SinkBatch) -> Result<bool, StoreError> {
        let invalid = |detail| StoreError::new(StoreErrorKind::Invalid, "write", self.target(task), detail);
        let totals = Totals::of(&batch.records).map_err(invalid)?;
        let seq = i64::try_from(batch.seq.0).map_err(|e| invalid(format!("seq {}: {e}", batch.seq)))?;
        let step = if seq == 1 { BEGIN } else { MOVE };
        let sql = format!("WITH moved AS ({step}), written AS ({UPSERT}) SELECT count(*) FROM moved");
        let (id, inputs) = (task.to_string(), inputs_to_json(&batch.inputs));
        let counters = counters_to_json(&batch.counters);
        let parameters: [Parameter<'_>; 10] = [
            (&self.pipeline, Type::TEXT),
            (&id, Type::TEXT),
            (&seq, Type::INT8),
            (&inputs, Type::TEXT),
            (&counters, Type::TEXT),
            (&totals.merchant_ids, Type::TEXT_ARRAY),
            (&totals.starts, Type::INT8_ARRAY),
            (&totals.ends, Type::INT8_ARRAY),
            (&totals.counts, Type::INT8_ARRAY),
            (&totals.amounts, Type::INT8_ARRAY),
        ];
        let question = connection.0.client.query_typed(&sql, &parameters);
        let rows = self.within("write", task, self.patience.answer, question).await?;
        Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) == 1))
    }
}

/// Sets what the transactions rely on; returns the encoding of the database.
async fn begin_session(client: &Client, answer: Duration) -> Result<String, tokio_postgres::Error> {
    // What is confirmed must not be lost with the server: then the pipeline would be ahead of its rows.
    let sql = format!(
        "SET statement_timeout = {};
         SET default_transaction_isolation = 'read committed';
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
         SHOW server_encoding",
        answer.as_millis().clamp(1, i32::MAX as u128)
    );
    let messages = client.simple_query(&sql).await?;
    let last = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(last.unwrap_or_default().to_owned())
}

#[async_trait]
impl Sink for PostgresSink {
    async fn position(&self, task: &TaskId) -> Result<SinkPosition, StoreError> {
        let connection = self.connection(task).await?;
        let position = self.position_on(&connection, task).await?;
        self.keep(connection);
        Ok(position)
    }

    async fn write(&self, task: &TaskId, batch: &SinkBatch) -> Result<SinkReply, StoreError> {
        let connection = self.connection(task).await?;
        let reply = match self.write_on(&connection, task, batch).await? {
            true => SinkReply::Written,
            false => SinkReply::Elsewhere(self.position_on(&connection, task).await?),
        };
        self.keep(connection);
        Ok(reply)
    }
}
