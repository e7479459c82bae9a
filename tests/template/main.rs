//! What no linter of templates sees: that `template.yaml` fits the topology, the functions, the tables and itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use payguard_engine::StageId;
use payguard_topology::config::{RESERVED, variable};
use payguard_topology::{Config, Stage, StageKind, Topology, collection, payguard};
use serde_yaml_ng::Value;

/// Properties of SAM's MSK event source that exist.
const MSK_PROPERTIES: [&str; 19] = [
    "BatchSize",
    "BisectBatchOnFunctionError",
    "ConsumerGroupId",
    "DestinationConfig",
    "Enabled",
    "FilterCriteria",
    "FunctionResponseTypes",
    "KmsKeyArn",
    "LoggingConfig",
    "MaximumBatchingWindowInSeconds",
    "MaximumRecordAgeInSeconds",
    "MaximumRetryAttempts",
    "MetricsConfig",
    "ProvisionedPollerConfig",
    "SchemaRegistryConfig",
    "SourceAccessConfigurations",
    "StartingPosition",
    "Stream",
    "Topics",
];
/// MSK's own limit of a function's timeout, seconds.
const LONGEST_TIMEOUT: u64 = 14 * 60;

/// The template as it is deployed with one choice of parameters: conditions are resolved, what they leave out is gone.
struct Template {
    root: Value,
    /// The configuration of the functions that it makes.
    config: Config,
}

impl Template {
    /// The template with its defaults.
    fn read() -> Template {
        Template::with(1, false)
    }

    /// The template of a deployment that is not active.
    fn inactive() -> Template {
        Template::of(1, false, false)
    }

    /// The same for every choice that decides which resources there are.
    fn all() -> Vec<Template> {
        vec![Template::with(1, false), Template::with(8, false), Template::with(1, true), Template::with(8, true)]
    }

    fn with(salts: u32, database: bool) -> Template {
        Template::of(salts, database, true)
    }

    fn of(salts: u32, database: bool, active: bool) -> Template {
        let text = std::fs::read_to_string(workspace().join("template.yaml")).expect("template.yaml is readable");
        let mut root: Value = serde_yaml_ng::from_str(&text).expect("template.yaml is YAML");
        let holds = |condition: &str| match condition {
            "StatsAreSalted" => salts > 1,
            "DirectoryIsDatabase" | "TotalsAreInDatabase" | "PublishIsKafka" => database,
            // Whose certificate another database has; where there is none it does not matter.
            "DatabaseHasOwnCa" | "EnrichHasOwnCa" | "TotalsHaveOwnCa" => database && salts > 1,
            "KafkaHasLogin" | "PublishLogsIn" => database && salts > 1,
            "IsActive" => active,
            other => panic!("no condition {other} is known here"),
        };
        let conditions = set(root["Conditions"].as_mapping().into_iter().flatten().map(|(name, _)| self::text(name)));
        for name in &conditions {
            let _ = holds(name);
        }
        root["Parameters"]["StatsSalts"]["Default"] = salts.into();
        root["Parameters"]["Directory"]["Default"] = if database { "postgres" } else { "seeded" }.into();
        root["Parameters"]["PublishSink"]["Default"] = if database { "kafka" } else { "file" }.into();
        root["Parameters"]["TotalsSink"]["Default"] = if database { "postgres" } else { "file" }.into();
        let root = resolved(&root, &holds).expect("a template");
        let mut config = Config::default();
        config.stats.salts = salts;
        config.source.partitions = 4;
        Template { root, config }
    }

    fn topology(&self) -> Topology {
        payguard(&self.config)
    }

    fn resources(&self, kind: &str) -> BTreeMap<String, &Value> {
        let all = self.root["Resources"].as_mapping().expect("resources");
        let of_kind = all.iter().filter(|(_, resource)| text(&resource["Type"]) == kind);
        of_kind.map(|(name, resource)| (text(name), resource)).collect()
    }

    /// The functions by the binary they run.
    fn functions(&self) -> BTreeMap<String, &Value> {
        let functions = self.resources("AWS::Serverless::Function").into_values();
        functions.map(|function| (text(&function["Metadata"]["BuildProperties"]["Binary"]), function)).collect()
    }

    /// A property of a function, or what all functions have.
    fn property<'a>(&'a self, function: &'a Value, name: &str) -> &'a Value {
        match &function["Properties"][name] {
            Value::Null => &self.root["Globals"]["Function"][name],
            value => value,
        }
    }

    /// The statements of a function's role.
    fn statements(&self, function: &Value) -> Vec<&Value> {
        let role = text(&function["Properties"]["Role"]).replace("GetAtt ", "").replace(".Arn", "");
        let role = self.resources("AWS::IAM::Role").remove(&role).unwrap_or_else(|| panic!("no role {role}"));
        assert!(role["Properties"]["ManagedPolicyArns"].is_null(), "managed policies are wider than needed");
        let policies = role["Properties"]["Policies"].as_sequence().expect("policies");
        policies.iter().flat_map(|p| list(&p["PolicyDocument"]["Statement"])).collect()
    }

    fn variables(&self, function: &Value) -> BTreeMap<String, String> {
        let of = |value: &Value| -> Vec<(String, String)> {
            let variables = value["Environment"]["Variables"].as_mapping();
            variables.into_iter().flatten().map(|(name, value)| (text(name), self.value(value))).collect()
        };
        of(&self.root["Globals"]["Function"]).into_iter().chain(of(&function["Properties"])).collect()
    }

    /// A value; a reference to a parameter is the parameter's default.
    fn value(&self, value: &Value) -> String {
        let text = text(value);
        match text.strip_prefix("Ref ").map(|name| &self.root["Parameters"][name]["Default"]) {
            Some(Value::Null) | None => text,
            Some(default) => self::text(default),
        }
    }
}

/// A value without `!If`; `None` when nothing is left of it.
fn resolved(value: &Value, holds: &impl Fn(&str) -> bool) -> Option<Value> {
    match value {
        Value::Tagged(tagged) if tagged.tag == "If" => {
            let parts = tagged.value.as_sequence().expect("a condition and two values");
            resolved(&parts[if holds(&text(&parts[0])) { 1 } else { 2 }], holds)
        }
        Value::Tagged(_) if text(value) == "Ref AWS::NoValue" => None,
        Value::Sequence(items) => Some(Value::Sequence(items.iter().filter_map(|v| resolved(v, holds)).collect())),
        Value::Mapping(fields) => {
            let is_left_out = |v: &Value| v["Type"].is_string() && v["Condition"].as_str().is_some_and(|c| !holds(c));
            let kept = fields.iter().filter(|(_, v)| !is_left_out(v));
            Some(Value::Mapping(kept.filter_map(|(k, v)| Some((k.clone(), resolved(v, holds)?))).collect()))
        }
        other => Some(other.clone()),
    }
}

/// A scalar as text; what an intrinsic function is given, behind its name (`Ref Topic`), except for `!Sub`.
fn text(value: &Value) -> String {
    match value {
        Value::Tagged(tagged) => {
            let tag = tagged.tag.to_string().trim_start_matches('!').to_owned();
            let inner = match &tagged.value {
                Value::Sequence(parts) => text(&parts[0]),
                other => text(other),
            };
            if tag == "Sub" { inner } else { format!("{tag} {inner}") }
        }
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(yes) => yes.to_string(),
        _ => String::new(),
    }
}

/// A list, or a single value as a list.
fn list(value: &Value) -> Vec<&Value> {
    match value {
        Value::Sequence(values) => values.iter().collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

fn texts(value: &Value) -> BTreeSet<String> {
    list(value).into_iter().map(text).collect()
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn upstreams(topology: &Topology, stage: &StageId) -> BTreeSet<String> {
    topology.inputs(stage).map(|stream| stream.producer.to_string()).collect()
}

fn set(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    names.into_iter().collect()
}

#[test]
fn every_stage_has_a_function_that_runs_its_binary() {
    Template::all().iter().for_each(check_binaries);
}

fn check_binaries(template: &Template) {
    let functions = template.functions();
    let stages = set(template.topology().stages.iter().map(|s| s.id.to_string()));
    assert_eq!(set(functions.keys().cloned()), stages);
    assert_eq!(template.resources("AWS::Serverless::Function").len(), stages.len(), "no binary runs twice");
    for (stage, function) in functions {
        let manifest = std::fs::read_to_string(workspace().join("functions").join(&stage).join("Cargo.toml"));
        let manifest: toml::Table = manifest.expect("a package for every function").parse().expect("TOML");
        let bins: Vec<&str> =
            manifest["bin"].as_array().expect("bins").iter().filter_map(|b| b["name"].as_str()).collect();
        assert_eq!(bins, [stage.as_str()]);
        assert_eq!(text(&function["Metadata"]["BuildMethod"]), "rust-cargolambda");
        assert_eq!(text(&function["Properties"]["FunctionName"]), format!("${{FunctionPrefix}}{stage}"));
        assert_eq!(texts(template.property(function, "Architectures")), set(["arm64".to_owned()]));
        assert_eq!(text(template.property(function, "Runtime")), "provided.al2023");
        assert_eq!(text(template.property(function, "Handler")), "bootstrap");
    }
}

#[test]
fn every_function_ends_before_its_event_source_gives_it_up_and_logs_to_a_group_that_is_kept_for_a_time() {
    let template = Template::with(8, true);
    let groups = template.resources("AWS::Logs::LogGroup");
    assert_eq!(groups.len(), template.functions().len());
    for (stage, function) in template.functions() {
        let timeout = template.property(function, "Timeout").as_u64().expect("a timeout");
        assert!(timeout <= LONGEST_TIMEOUT, "{stage}: {timeout} s");
        let group = text(&function["Properties"]["LoggingConfig"]["LogGroup"]).replace("Ref ", "");
        let group = &groups[&group]["Properties"];
        assert_eq!(text(&group["LogGroupName"]), format!("/aws/lambda/${{FunctionPrefix}}{stage}"));
        assert_eq!(text(&group["RetentionInDays"]), "Ref LogRetentionDays");
    }
}

#[test]
fn the_variables_of_every_function_are_known_to_it() {
    for template in Template::all() {
        let topology = template.topology();
        for (stage, function) in template.functions() {
            let variables = template.variables(function);
            let config = Config::default().load(None, variables.clone(), &RESERVED, &[]);
            let config = config.unwrap_or_else(|e| panic!("{stage}: {e}"));
            assert_eq!(config, template.config, "{stage}");
            for needed in ["PAYGUARD_LEDGER_TABLE", "PAYGUARD_STATE_TABLE", "PAYGUARD_SEGMENT_BUCKET"] {
                assert!(variables.contains_key(needed), "{stage} has no {needed}");
            }
            // Those of the other system have no place in this one.
            for (name, _) in template.config.shards.by_stage().into_iter().filter(|(name, _)| !name.contains('_')) {
                let name = variable(&format!("shards.{name}"));
                assert!(variables.contains_key(&name), "{stage} has no {name}");
            }
            let kind = &topology.stage(&StageId::new(&stage)).expect("a stage").kind;
            let collects = variables.contains_key(&variable("gc.retention_ms"));
            assert_eq!(collects, *kind == StageKind::Schedule, "{stage}: only clock collects");
            let mount = list(&function["Properties"]["FileSystemConfigs"]).first().map(|c| text(&c["LocalMountPath"]));
            let sink = variables.get("PAYGUARD_SINK");
            let folder = sink.and_then(|url| url.strip_prefix("file://")).map(str::to_owned);
            assert_eq!(mount, folder, "{stage} writes where its file system is");
            assert_eq!(sink.is_some(), *kind == StageKind::Sink, "{stage}");
            let is_elsewhere = sink.is_some_and(|sink| ["postgres", "kafka"].contains(&&**sink));
            assert_eq!(mount.is_some(), sink.is_some() && !is_elsewhere, "{stage}");
            let is_kafka = sink.is_some_and(|sink| sink == "kafka");
            for variable in ["PAYGUARD_KAFKA_BOOTSTRAP", "PAYGUARD_KAFKA_SASL_MECHANISM"] {
                assert_eq!(variables.contains_key(variable), is_kafka, "{stage} {variable}");
            }
            let writes = |s: &&Value| texts(&s["Action"]).contains("kafka-cluster:WriteData");
            assert_eq!(template.statements(function).iter().any(writes), is_kafka, "{stage}");
            let mounts = |s: &&Value| texts(&s["Action"]).contains("elasticfilesystem:ClientWrite");
            assert_eq!(template.statements(function).iter().any(mounts), mount.is_some(), "{stage}");
        }
    }
}

#[test]
fn only_enrich_and_totals_have_the_database_and_no_password_is_in_the_template() {
    const DATABASE: [&str; 3] = ["PAYGUARD_DB_URL", "PAYGUARD_DB_USER", "PAYGUARD_DB_PASSWORD"];
    for (database, own_ca) in [(false, false), (true, false), (true, true)] {
        let template = Template::with(if own_ca { 8 } else { 1 }, database);
        for (stage, function) in template.functions() {
            let variables = template.variables(function);
            let found = DATABASE.iter().filter(|name| variables.contains_key(**name)).count();
            let asks = stage == "enrich" || stage == "totals";
            assert_eq!(found, if asks && database { DATABASE.len() } else { 0 }, "{stage}");
            assert_eq!(variables.contains_key("PAYGUARD_DIRECTORY"), stage == "enrich", "{stage}");
            let file = variables.get("PAYGUARD_DB_CA_FILE").map(String::as_str);
            assert_eq!(file, (asks && own_ca).then_some("/opt/database-ca.pem"), "{stage}");
            let layers = texts(&function["Properties"]["Layers"]);
            assert_eq!(layers, set((asks && own_ca).then(|| "Ref DatabaseCaLayer".to_owned())), "{stage}");
            let in_network = !function["Properties"]["VpcConfig"].is_null();
            assert!(stage != "enrich" || in_network == database, "{stage} is in the network of the database");
            assert!(stage != "totals" || in_network, "{stage} is in the network of what it writes to");
            let interfaces = |s: &&Value| texts(&s["Action"]).contains("ec2:CreateNetworkInterface");
            let polls = !function["Properties"]["Events"].is_null() && stage != "clock";
            let may_join = template.statements(function).iter().any(interfaces);
            assert_eq!(may_join, in_network || polls, "{stage}");
        }
    }
    let template = Template::with(1, true);
    for (stage, variable) in [("enrich", "PAYGUARD_DIRECTORY"), ("totals", "PAYGUARD_SINK")] {
        let variables = template.variables(template.functions()[stage]);
        assert_eq!(variables[variable], "postgres");
        for (name, key) in [("PAYGUARD_DB_USER", "username"), ("PAYGUARD_DB_PASSWORD", "password")] {
            let reference = format!("{{{{resolve:secretsmanager:${{DatabaseSecretArn}}:SecretString:{key}}}}}");
            assert_eq!(variables[name], reference);
        }
    }
}

#[test]
fn a_login_of_the_cluster_comes_from_its_secret_for_those_who_need_it() {
    for has_login in [false, true] {
        let template = Template::with(if has_login { 8 } else { 1 }, true);
        for (stage, function) in template.functions() {
            let variables = template.variables(function);
            for (name, key) in [("PAYGUARD_KAFKA_USER", "username"), ("PAYGUARD_KAFKA_PASSWORD", "password")] {
                let reference = format!("{{{{resolve:secretsmanager:${{KafkaSecretArn}}:SecretString:{key}}}}}");
                let expected = (stage == "publish" && has_login).then_some(reference);
                assert_eq!(variables.get(name), expected.as_ref(), "{stage}");
            }
            let mechanism = variables.get("PAYGUARD_KAFKA_SASL_MECHANISM").map(String::as_str);
            let expected = if has_login { "SCRAM-SHA-512" } else { "AWS_MSK_IAM" };
            assert_eq!(mechanism, (stage == "publish").then_some(expected), "{stage}");
            assert_eq!(variables.contains_key("PAYGUARD_KAFKA_TLS"), stage == "publish" && has_login, "{stage}");
            let mapped = mappings(function);
            for mapping in mapped.values() {
                let logins = list(&mapping["SourceAccessConfigurations"]);
                assert_eq!(logins.len(), usize::from(has_login), "{stage}");
                assert!(logins.iter().all(|login| text(&login["URI"]) == "Ref KafkaSecretArn"), "{stage}");
            }
            for action in ["secretsmanager:GetSecretValue", "kms:Decrypt"] {
                let reads = |s: &&Value| texts(&s["Action"]).contains(action);
                let may = template.statements(function).iter().any(reads);
                assert_eq!(may, has_login && !mapped.is_empty(), "{stage} {action}");
            }
        }
    }
}

/// The topics that are mapped to a function: name of the topic's variable and the mapping's properties.
fn mappings(function: &Value) -> BTreeMap<String, &Value> {
    let events = function["Properties"]["Events"].as_mapping().into_iter().flatten().map(|(_, event)| event);
    let kafka = events.filter(|event| text(&event["Type"]) == "MSK").map(|event| &event["Properties"]);
    kafka.map(|mapping| (text(list(&mapping["Topics"])[0]).replace("Ref ", ""), mapping)).collect()
}

#[test]
fn topics_are_mapped_to_the_stages_that_read_them() {
    let template = Template::read();
    let defaults = |names: BTreeSet<String>| -> BTreeSet<String> {
        names.iter().map(|name| text(&template.root["Parameters"][name.as_str()]["Default"])).collect()
    };
    for (stage, function) in template.functions() {
        let events = function["Properties"]["Events"].as_mapping().into_iter().flatten();
        let kinds: Vec<String> = events.map(|(_, event)| text(&event["Type"])).collect();
        let mapped = mappings(function);
        let topics = match &template.topology().stage(&StageId::new(&stage)).expect("a stage").kind {
            StageKind::Source { topics } => set(topics.iter().map(|t| t.partitions.topic.clone())),
            StageKind::Broadcast { topic } => set([topic.clone()]),
            StageKind::Schedule => {
                assert_eq!(kinds, ["Schedule"], "{stage}");
                let minute = &function["Properties"]["Events"]["Minute"]["Properties"];
                assert_eq!(text(&minute["Schedule"]), "rate(1 minute)");
                continue;
            }
            StageKind::Operators | StageKind::Lookup | StageKind::Sink => BTreeSet::new(),
        };
        assert_eq!(kinds.len(), mapped.len(), "{stage}: nothing but topics");
        assert_eq!(defaults(set(mapped.keys().cloned())), topics, "{stage}");
        for mapping in mapped.values() {
            assert_eq!(list(&mapping["Topics"]).len(), 1, "{stage}: a mapping has one topic");
        }
        // The role reads the mapped topics as the mapped groups, and no others.
        let groups = set(mapped.values().map(|mapping| text(&mapping["ConsumerGroupId"]).replace("Ref ", "")));
        for (action, kind, names) in [
            ("kafka-cluster:ReadData", "topic", set(mapped.keys().cloned())),
            ("kafka-cluster:AlterGroup", "group", groups),
        ] {
            let statements = template.statements(function);
            let resources = statements.iter().filter(|s| texts(&s["Action"]).contains(action));
            let resources: BTreeSet<String> = resources.flat_map(|s| list(&s["Resource"])).map(text).collect();
            let expected = names.iter().map(|name| {
                let account = "arn:${AWS::Partition}:kafka:${AWS::Region}:${AWS::AccountId}";
                format!("{account}:{kind}/${{Name}}/${{Uuid}}/${{{name}}}")
            });
            assert_eq!(resources, set(expected), "{stage}");
        }
    }
}

#[test]
fn mappings_of_topics_lose_nothing_and_have_properties_that_exist() {
    let template = Template::read();
    let mut groups = BTreeSet::new();
    for (stage, function) in template.functions() {
        for (topic, mapping) in mappings(function) {
            for name in mapping.as_mapping().expect("properties").keys().map(text) {
                assert!(MSK_PROPERTIES.contains(&name.as_str()), "an MSK event source has no property {name}");
            }
            let get = |name: &str| &mapping[name];
            assert_eq!(texts(get("FunctionResponseTypes")), set(["ReportBatchItemFailures".to_owned()]));
            let variables = template.variables(function);
            assert_eq!(variables["PAYGUARD_REPORT_BATCH_ITEM_FAILURES"], "true", "answer and mapping agree");
            assert_eq!(text(get("StartingPosition")), "TRIM_HORIZON", "LATEST loses records");
            let group = text(get("ConsumerGroupId"));
            assert!(group.starts_with("Ref "), "{stage}: otherwise a new mapping of {topic} begins anew");
            let group = template.value(get("ConsumerGroupId"));
            assert!(groups.insert(group.clone()), "{group} has the records of two mappings");
            assert_eq!(text(get("BisectBatchOnFunctionError")), "true");
            assert!(!text(&get("DestinationConfig")["OnFailure"]["Destination"]).is_empty());
            assert!(get("MaximumRetryAttempts").as_u64().is_some_and(|n| n > 10 && n <= 10_000), "-1 would mean 10");
            assert!(get("MaximumRecordAgeInSeconds").as_u64().is_some_and(|n| (60..=604_800).contains(&n)));
            let pollers = get("ProvisionedPollerConfig").as_mapping().expect("provisioned mode").keys().map(text);
            assert_eq!(set(pollers), set(["MaximumPollers".to_owned(), "MinimumPollers".to_owned()]));
        }
    }
    assert_eq!(groups.len(), 3);
    assert_eq!(template.root["Parameters"]["BatchSize"]["MaxValue"].as_u64(), Some(10_000));
    assert_eq!(template.root["Parameters"]["BatchingWindowSeconds"]["MaxValue"].as_u64(), Some(300));
}

#[test]
fn policies_name_exact_actions() {
    Template::all().iter().for_each(check_actions);
}

fn check_actions(template: &Template) {
    let mut roles = BTreeSet::new();
    for (stage, function) in template.functions() {
        assert!(roles.insert(text(&function["Properties"]["Role"])), "{stage} has a role of its own");
        assert!(function["Properties"]["Policies"].is_null(), "{stage}: a policy beside its role has no effect");
        for statement in template.statements(function) {
            let actions = texts(&statement["Action"]);
            assert!(!actions.is_empty() && text(&statement["Effect"]) == "Allow", "{stage}: {statement:?}");
            assert!(actions.iter().all(|action| !action.contains('*')), "{stage}: {actions:?}");
            let everything = texts(&statement["Resource"]).contains("*");
            assert!(!everything || actions.iter().all(|a| a.starts_with("ec2:")), "{stage}: {actions:?} of everything");
            if actions.iter().any(|action| action.starts_with("dynamodb:")) {
                let keys = &statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"];
                assert!(!list(keys).is_empty(), "{stage}: {actions:?} of all keys");
            }
        }
    }
    assert_eq!(roles.len(), template.resources("AWS::IAM::Role").len(), "no role is left over");
}

/// What a function may do with the keys of which stages: `ledger:Action` and `state:Action` to the stages' names.
fn key_access(template: &Template, function: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut access: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for statement in template.statements(function) {
        let keys = texts(&statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]);
        let table = text(&statement["Resource"]).replace("GetAtt ", "").replace("Table.Arn", "").to_lowercase();
        for action in texts(&statement["Action"]) {
            let Some(action) = action.strip_prefix("dynamodb:") else { continue };
            let stages = keys.iter().map(|key| key.trim_start_matches("${Pipeline}#").to_owned());
            access.entry(format!("{table}:{action}")).or_default().extend(stages);
        }
    }
    access
}

#[test]
fn a_function_writes_its_own_keys_and_reads_those_of_the_stages_before_it() {
    Template::all().iter().for_each(check_keys);
}

fn check_keys(template: &Template) {
    let topology = template.topology();
    for stage in &topology.stages {
        let id = stage.id.to_string();
        let access = key_access(template, template.functions()[&id]);
        let get = |action: &str| access.get(action).cloned().unwrap_or_default();
        if stage.kind == StageKind::Schedule {
            // It reads all heads, and collects what it may: not the log of a stage that decides a value.
            let of_logs = |s: &&Stage| !matches!(s.kind, StageKind::Broadcast { .. } | StageKind::Schedule);
            let rows = set(topology.stages.iter().filter(of_logs).map(|s| format!("{}/*", s.id)));
            let pages = set(collection::stages_with_expiring_pages(&topology).iter().map(|id| format!("{id}#*")));
            let expected = [
                ("ledger:BatchWriteItem", rows.clone()),
                ("ledger:GetItem", set(["*".to_owned()])),
                ("ledger:Query", rows),
                ("ledger:UpdateItem", set([id.clone()])),
                ("state:DeleteItem", pages.clone()),
                ("state:Query", pages),
            ];
            assert_eq!(access, expected.into_iter().map(|(action, keys)| (action.to_owned(), keys)).collect());
            continue;
        }
        let own = set([id.clone(), format!("{id}/*")]);
        let upstream = upstreams(&topology, &stage.id);
        let rows = set(upstream.iter().map(|u| format!("{u}/*")));
        let is_registered = |u: &&String| {
            let kind = topology.stage(&StageId::new(u)).map(|s| &s.kind);
            matches!(kind, Some(StageKind::Source { .. } | StageKind::Broadcast { .. }))
        };
        let registries = set(upstream.iter().filter(is_registered).cloned());
        // The head of the task that decides the value.
        let decided = set(topology.broadcasts.iter().filter(|b| b.0 == stage.id).map(|b| format!("{}/*", b.1)));
        assert_eq!(get("ledger:PutItem"), own, "{id}");
        assert_eq!(get("ledger:UpdateItem"), own, "{id}");
        assert_eq!(get("ledger:GetItem"), &(&own | &registries) | &decided, "{id}");
        for action in ["ledger:DeleteItem", "ledger:BatchWriteItem"] {
            assert_eq!(get(action), BTreeSet::new(), "{id} {action}");
        }
        let (own_rows, own_state) = match stage.kind {
            StageKind::Operators => (own, set([format!("{id}#*")])),
            _ => (BTreeSet::new(), BTreeSet::new()),
        };
        assert_eq!(get("ledger:Query"), &own_rows | &rows, "{id}");
        for action in ["Query", "PutItem", "DeleteItem"] {
            assert_eq!(get(&format!("state:{action}")), own_state, "{id} {action}");
        }
    }
}

#[test]
fn a_function_reads_and_writes_only_its_segments_and_wakes_only_its_consumers() {
    Template::all().iter().for_each(check_segments_and_wakes);
}

fn check_segments_and_wakes(template: &Template) {
    let topology = template.topology();
    for stage in &topology.stages {
        let id = stage.id.to_string();
        let statements = template.statements(template.functions()[&id]);
        let resources = |action: &str, within: &str| -> BTreeSet<String> {
            let of_action = statements.iter().filter(|s| texts(&s["Action"]).contains(action));
            let all = of_action.flat_map(|s| texts(&s["Resource"]));
            all.filter_map(|resource| resource.split_once(within).map(|(_, rest)| rest.to_owned())).collect()
        };
        let upstream = upstreams(&topology, &stage.id);
        let own = set((stage.kind == StageKind::Operators).then(|| format!("{id}/*")));
        let written = set(topology.outputs(&stage.id).next().map(|_| format!("{id}/*")));
        let segments = "${SegmentBucket.Arn}/${Pipeline}/";
        assert_eq!(resources("s3:GetObject", segments), &own | &set(upstream.iter().map(|u| format!("{u}/*"))), "{id}");
        assert_eq!(resources("s3:PutObject", segments), written, "{id}");
        let of_logs = |s: &&Stage| !matches!(s.kind, StageKind::Broadcast { .. } | StageKind::Schedule);
        let logs = topology.stages.iter().filter(of_logs).filter(|_| stage.kind == StageKind::Schedule);
        let collected = set(logs.map(|s| format!("{}/*", s.id)));
        assert_eq!(resources("s3:DeleteObject", segments), collected, "{id}");
        let lists = statements.iter().filter(|s| texts(&s["Action"]).contains("s3:ListBucket"));
        let prefixes = lists.flat_map(|s| texts(&s["Condition"]["StringLike"]["s3:prefix"]));
        let prefixes = set(prefixes.map(|prefix| prefix.trim_start_matches("${Pipeline}/").to_owned()));
        assert_eq!(prefixes, collected, "{id} lists what it collects");
        let consumers = set(topology.outputs(&stage.id).map(|stream| stream.consumer.to_string()));
        // The clock has nothing to say to a stage that decides a value.
        let is_woken = |s: &&Stage| !matches!(s.kind, StageKind::Broadcast { .. } | StageKind::Schedule);
        let everyone = set(topology.stages.iter().filter(is_woken).map(|s| s.id.to_string()));
        let wakes = match stage.kind {
            StageKind::Schedule => everyone,
            StageKind::Source { .. } | StageKind::Broadcast { .. } => consumers,
            // A task whose time ends before its input wakes itself.
            StageKind::Operators | StageKind::Lookup | StageKind::Sink => &consumers | &set([id.clone()]),
        };
        assert_eq!(resources("lambda:InvokeFunction", ":function:${FunctionPrefix}"), wakes, "{id}");
    }
}

#[test]
fn stores_are_kept_encrypted_and_recoverable() {
    let template = Template::read();
    let tables = template.resources("AWS::DynamoDB::Table");
    let keys = [("LedgerTable", ["task", "row"]), ("StateTable", ["group", "page"])];
    assert_eq!(tables.len(), keys.len());
    for (name, key) in keys {
        let (table, properties) = (tables[name], &tables[name]["Properties"]);
        let schema: Vec<String> = list(&properties["KeySchema"]).iter().map(|k| text(&k["AttributeName"])).collect();
        assert_eq!(schema, key, "{name}");
        assert_eq!(text(&properties["BillingMode"]), "PAY_PER_REQUEST");
        assert_eq!(text(&properties["DeletionProtectionEnabled"]), "true");
        assert_eq!(text(&properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]), "true");
        assert_eq!(text(&properties["SSESpecification"]["SSEEnabled"]), "true");
        assert_eq!(text(&table["DeletionPolicy"]), "Retain");
        assert_eq!(text(&table["UpdateReplacePolicy"]), "Retain");
    }
    assert_eq!(text(&tables["StateTable"]["Properties"]["TimeToLiveSpecification"]["AttributeName"]), "expires_at");
    assert!(tables["LedgerTable"]["Properties"]["TimeToLiveSpecification"].is_null(), "the ledger never expires");
    let bucket = template.resources("AWS::S3::Bucket")["SegmentBucket"];
    assert_eq!(text(&bucket["DeletionPolicy"]), "Retain");
    let access = bucket["Properties"]["PublicAccessBlockConfiguration"].as_mapping().expect("a block");
    assert!(access.len() == 4 && access.values().all(|v| v.as_bool() == Some(true)));
    assert!(!bucket["Properties"]["BucketEncryption"].is_null());
    let rule = &bucket["Properties"]["LifecycleConfiguration"]["Rules"][0];
    assert_eq!(text(&rule["Prefix"]), "${Pipeline}/", "savepoints in the same bucket stay");
    assert_eq!(text(&rule["ExpirationInDays"]), "Ref SegmentExpirationDays");
    let policy = template.resources("AWS::S3::BucketPolicy")["SegmentBucketPolicy"];
    let statement = &policy["Properties"]["PolicyDocument"]["Statement"][0];
    assert_eq!(text(&statement["Effect"]), "Deny");
    assert_eq!(text(&statement["Condition"]["Bool"]["aws:SecureTransport"]), "false");
}

/// Nothing may begin in a deployment into which a savepoint is to be restored.
#[test]
fn a_deployment_that_is_not_active_starts_nothing() {
    for (template, active) in [(Template::read(), true), (Template::inactive(), false)] {
        let (mut topics, mut schedules) = (0, 0);
        for function in template.functions().into_values() {
            let events = function["Properties"]["Events"].as_mapping().into_iter().flatten();
            for event in events.map(|(_, event)| event) {
                match &*text(&event["Type"]) {
                    "MSK" => {
                        assert_eq!(event["Properties"]["Enabled"].as_bool(), Some(active));
                        topics += 1;
                    }
                    "Schedule" => {
                        let state = if active { "ENABLED" } else { "DISABLED" };
                        assert_eq!(text(&event["Properties"]["State"]), state);
                        schedules += 1;
                    }
                    other => panic!("{other} events are not stopped"),
                }
            }
        }
        assert_eq!((topics, schedules), (3, 1));
    }
    let source = std::fs::read_to_string(workspace().join("template.yaml")).expect("template.yaml is readable");
    assert_eq!(source.matches("!If [IsActive, true, false]").count(), 3);
}

#[test]
fn every_parameter_is_explained_and_used() {
    let template = Template::read();
    let source = std::fs::read_to_string(workspace().join("template.yaml")).expect("template.yaml is readable");
    for (name, parameter) in template.root["Parameters"].as_mapping().expect("parameters") {
        let name = text(name);
        assert!(text(&parameter["Description"]).len() > 20, "{name}");
        assert!(
            source.contains(&format!("!Ref {name}")) || source.contains(&format!("${{{name}}}")),
            "{name} is unused"
        );
    }
}

#[test]
fn the_linter_finds_nothing() {
    let own = workspace().join(".tools/bin/sam");
    let sam = if own.exists() { own } else { PathBuf::from("sam") };
    let run =
        Command::new(&sam).args(["validate", "--lint"]).current_dir(workspace()).env("SAM_CLI_TELEMETRY", "0").output();
    let run = run.unwrap_or_else(|e| panic!("sam does not start ({e}): run `scripts/tools.sh sam`, which installs it"));
    let text = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&text));
}
