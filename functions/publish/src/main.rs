//! The function of stage `publish`.

use std::process::ExitCode;
use std::sync::Arc;

use payguard_engine::store::Sink;
use payguard_kafka::{KafkaClients, KafkaSettings};
use payguard_lambda::StartError;
use payguard_publish::{kafka, topics};
use payguard_topology::stage;

fn main() -> ExitCode {
    payguard_lambda::run(|function| {
        let sink: Arc<dyn Sink> = match function.options.sink.as_deref() {
            Some(kafka::KAFKA) => {
                let settings = KafkaSettings::read(&function.variables);
                let clients = settings.and_then(|settings| KafkaClients::new(settings, function.credentials.clone()));
                let clients = clients.map_err(|error| StartError::Kafka(Box::new(error)))?;
                Arc::new(kafka::sink(clients, &function.config, None))
            }
            _ => function.options.open_sink(topics(&function.config))?,
        };
        Ok(function.consumer(stage::PUBLISH, payguard_publish::make(&function.config, &function.topology, sink)))
    })
}
