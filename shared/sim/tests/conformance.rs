//! The world's stores do what every implementation has to do.

use payguard_sim::conformance::{file_conformance, ledger_conformance, segment_conformance, state_conformance};
use payguard_sim::{FaultPlan, SimWorld};

#[tokio::test]
async fn the_simulated_stores_conform() {
    for remembers_tokens in [false, true] {
        let world = SimWorld::new(0);
        world.plan(FaultPlan { remembers_tokens, ..FaultPlan::default() });
        ledger_conformance(&world).await;
        state_conformance(&world).await;
        segment_conformance(&world).await;
        file_conformance(&world).await;
    }
}
