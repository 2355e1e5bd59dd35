//! First writers of a tenant's salt on a store that ignores conditional creates.

use std::collections::BTreeSet;

use futures::future::join_all;
use kvasir_tests::faulty::{Dice, FaultyStore};

use crate::{client, node::Node, on_simulated_time};

#[test]
fn first_writers_agree_without_conditional_creates() {
    for seed in 0..40 {
        // Half of the stores fail, too.
        let roots = on_simulated_time(async {
            let store = FaultyStore::new(seed, if seed % 2 == 0 { 0 } else { 150 }, true);
            let mut dice = Dice::new(seed);
            let mut nodes = Vec::new();
            for id in 0..4 {
                nodes.push(Node::cold(id, &store, &mut dice).await);
            }
            let starts: Vec<u64> = nodes.iter().map(|_| dice.below(3_000) as u64).collect();
            let joins = nodes.iter().zip(starts).map(|(node, start)| async move {
                tokio::time::sleep(std::time::Duration::from_millis(start)).await;
                loop {
                    if let Ok(root) = client::join(&node.storage, &client::tenant()).await {
                        return root;
                    }
                    // While the breaker is open answers come at once: without a pause simulated time would stand still.
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            });
            join_all(joins).await
        });
        let different: BTreeSet<_> = roots.iter().map(ToString::to_string).collect();
        assert_eq!(different.len(), 1, "seed {seed}: {roots:?}");
    }
}
