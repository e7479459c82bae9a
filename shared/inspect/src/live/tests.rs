use super::*;

#[test]
fn a_moment_is_a_commit_or_a_time() {
    let of = |text: &str| text.parse::<At>().map_err(|e| e.to_string());
    assert_eq!(of("17"), Ok(At::Seq(17)));
    assert_eq!(of("1970-01-01T00:00:01.5Z"), Ok(At::Time(1_500)));
    for bad in ["0", "-1", "", "12:00", "2026-11-30", "rules/0"] {
        assert!(of(bad).is_err_and(|e| e.contains("such as 17") && e.contains("2026-11-30T12:00:00Z")), "{bad}");
    }
    assert_eq!(At::Seq(3).to_string(), "the state after commit 3");
    assert_eq!(At::Time(0).to_string(), "the state of 1970-01-01T00:00:00Z");
    assert_eq!(At::Time(i64::MAX).to_string(), "the state of 9223372036854775807 ms");
}
