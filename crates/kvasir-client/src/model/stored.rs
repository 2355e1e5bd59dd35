//! The profiles that a service has of a model, and what clients make of them.

use std::time::SystemTime;

use kvasir_api::ProfileInfo;
use kvasir_codec::Profile;
use kvasir_types::ModelSpec;

use super::writer::{by_preference, fetch, is_fine};
use crate::{
    Error,
    limits::{PROFILE_ANNOUNCED, PROFILES_MAX},
    rest::Client,
};

/// What clients that are given no profile do with one that the service has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileState {
    /// They encode with it.
    InForce,
    /// They will encode with it when it is five minutes old: readers have it by then.
    Announced,
    /// They read what is stored with it.
    Earlier,
    /// They never encode with it, because it loses too much or is none of the model.
    PassedOver,
}

/// A profile that a service has.
#[derive(Debug, Clone)]
pub struct StoredProfile {
    /// What the service says of it.
    pub info: ProfileInfo,
    /// What clients do with it.
    pub state: ProfileState,
    /// What is in it; `None` where this version cannot read it.
    pub profile: Option<Profile>,
}

/// The profiles of a model that the service has, at most 16: the one in force, then the others as they would follow it.
///
/// # Errors
/// Those of [`Client::list_profiles`] and [`Client::get_profile`].
pub async fn stored_profiles(client: &Client, spec: &ModelSpec) -> Result<Vec<StoredProfile>, Error> {
    let (model, now) = (spec.model_id(), SystemTime::now());
    let listed = client.list_profiles(&model).await?.profiles;
    let mut found = Vec::with_capacity(listed.len().min(PROFILES_MAX));
    for hash in by_preference(listed.clone(), now).into_iter().take(PROFILES_MAX) {
        let Some(info) = listed.iter().find(|info| info.profile_hash == hash) else { continue };
        let profile = match fetch(client, &model, &hash).await {
            Ok(profile) => Some(profile),
            Err(Error::Profile(_)) => None,
            Err(error) => return Err(error),
        };
        let is_usable =
            profile.as_ref().is_some_and(|profile| is_fine(profile) && profile.check_model(spec).is_ok());
        let in_force = found.iter().find(|of: &&StoredProfile| of.state == ProfileState::InForce);
        let age = info.stored_at_ms.map(|ms| now_ms(now).saturating_sub(ms));
        let is_young = age.is_some_and(|age| u128::from(age) < PROFILE_ANNOUNCED.as_millis());
        let state = match in_force {
            _ if !is_usable => ProfileState::PassedOver,
            None => ProfileState::InForce,
            Some(_) if is_young => ProfileState::Announced,
            Some(_) => ProfileState::Earlier,
        };
        found.push(StoredProfile { info: info.clone(), state, profile });
    }
    // One that nobody encodes with may come before it.
    found.sort_by_key(|of| of.state != ProfileState::InForce);
    Ok(found)
}

fn now_ms(now: SystemTime) -> u64 {
    now.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
