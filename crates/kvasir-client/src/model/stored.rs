//! A model's profiles at a service, and how clients use them.

use std::time::SystemTime;

use kvasir_api::ProfileInfo;
use kvasir_codec::Profile;
use kvasir_types::ModelSpec;

use super::writer::{by_preference, is_fine};
use crate::{
    Error,
    limits::{PROFILE_ANNOUNCED, PROFILES_MAX},
    rest::Client,
};

/// How clients without a given profile use one that the service has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileState {
    /// They encode with it.
    InForce,
    /// They will encode with it once it is five minutes old: by then readers have it.
    Announced,
    /// They only read chunks stored with it.
    Earlier,
    /// They never encode with it, because its loss is too large, its chunks do not record theirs, it takes more
    /// bytes or multiply-adds than clients allow to each other, it is of another model, or a client for quality
    /// exact made it.
    PassedOver,
}

/// A profile at a service.
#[derive(Debug, Clone)]
pub struct StoredProfile {
    /// The service's information about it.
    pub info: ProfileInfo,
    /// How clients use it.
    pub state: ProfileState,
    /// Its contents; `None` if this version cannot read it, or it takes more than clients allow to each other.
    pub profile: Option<Profile>,
}

/// A model's profiles at the service, at most 16: the one in force, then the others in order of succession.
///
/// # Errors
/// Those of [`Client::list_profiles`] and [`Client::get_profile`].
pub async fn stored_profiles(client: &Client, spec: &ModelSpec) -> Result<Vec<StoredProfile>, Error> {
    let (model, now) = (spec.model_id(), SystemTime::now());
    let listed = client.list_profiles(&model).await?.profiles;
    let mut found = Vec::with_capacity(listed.len().min(PROFILES_MAX));
    for info in by_preference(listed, now).into_iter().take(PROFILES_MAX) {
        let profile = match client.listed_profile(spec, &info).await {
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
        found.push(StoredProfile { info, state, profile });
    }
    // A profile that clients do not encode with may precede it.
    found.sort_by_key(|of| of.state != ProfileState::InForce);
    Ok(found)
}

fn now_ms(now: SystemTime) -> u64 {
    now.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
