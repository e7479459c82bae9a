//! The topology for people: text and Mermaid.

use std::fmt::Write;

use crate::{StageKind, Topology};

impl Topology {
    /// Stages with their operators, inputs and outputs, one line each.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for stage in &self.stages {
            let tasks = match &stage.kind {
                StageKind::Source { topics } => {
                    let names: Vec<&str> = topics.iter().map(|t| t.partitions.topic.as_str()).collect();
                    format!("a task per partition of {}", names.join(", "))
                }
                StageKind::Broadcast { topic } => format!("one task for all partitions of {topic}"),
                StageKind::Operators | StageKind::Lookup | StageKind::Sink => format!("{} task(s)", stage.shards),
                StageKind::Schedule => "on a schedule".to_owned(),
            };
            let _ = writeln!(text, "{:8} {} ({tasks})", stage.id.to_string(), stage.summary);
            if !stage.operators.is_empty() {
                let _ = writeln!(text, "         operators: {}", stage.operators.join(", "));
            }
            for stream in self.outputs(&stage.id) {
                let _ = writeln!(text, "         -> {} by {}: {}", stream.consumer, stream.key, stream.name);
            }
        }
        text
    }

    /// A Mermaid flow chart.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        let mut text = String::from("flowchart LR\n");
        for stage in &self.stages {
            let operators = stage.operators.join("<br/>");
            let _ = writeln!(text, "    {}[\"<b>{}</b><br/>{operators}\"]", stage.id, stage.id);
            if let StageKind::Source { topics } = &stage.kind {
                for topic in topics.iter().map(|t| &t.partitions.topic) {
                    let _ = writeln!(text, "    {topic}([{topic}]) --> {}", stage.id);
                }
            }
            if let StageKind::Broadcast { topic } = &stage.kind {
                let _ = writeln!(text, "    {topic}([{topic}]) --> {}", stage.id);
            }
        }
        for (reader, decider) in &self.broadcasts {
            let _ = writeln!(text, "    {decider} -. newest version .-> {reader}");
        }
        for stream in &self.streams {
            let _ = writeln!(
                text,
                "    {} -- \"{}<br/>by {}\" --> {}",
                stream.producer, stream.name, stream.key, stream.consumer
            );
        }
        text
    }
}
