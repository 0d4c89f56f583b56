//! The order in which stages are built.

use std::collections::{BTreeMap, BTreeSet};

/// The stages, each after those that it needs and, where nothing is said, in the order of their numbers. `needs` has an
/// entry for each, with the numbers of those that it needs.
///
/// # Errors
/// A stage that needs itself, directly or through others.
pub(super) fn in_order(needs: &BTreeMap<usize, BTreeSet<usize>>) -> Result<Vec<usize>, usize> {
    let mut users: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    for (stage, others) in needs {
        open.insert(*stage, others.len());
        for other in others {
            users.entry(*other).or_default().push(*stage);
        }
    }
    let mut ready: BTreeSet<usize> =
        open.iter().filter(|(_, others)| **others == 0).map(|(stage, _)| *stage).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(stage) = ready.pop_first() {
        order.push(stage);
        open.remove(&stage);
        for user in users.get(&stage).into_iter().flatten() {
            if let Some(others) = open.get_mut(user) {
                *others -= 1;
                if *others == 0 {
                    ready.insert(*user);
                }
            }
        }
    }
    let Some((mut stage, _)) = open.first_key_value().map(|(stage, others)| (*stage, *others)) else {
        return Ok(order);
    };
    // Whatever is left needs something that is left: going there as often as there are stages ends in a circle.
    for _ in 0..open.len() {
        stage = needs[&stage].iter().copied().find(|other| open.contains_key(other)).unwrap_or(stage);
    }
    Err(stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(needs: &[(usize, &[usize])]) -> Result<Vec<usize>, usize> {
        in_order(&needs.iter().map(|(stage, others)| (*stage, others.iter().copied().collect())).collect())
    }

    #[test]
    fn each_stage_comes_after_those_it_needs() {
        assert_eq!(order(&[(0, &[]), (2, &[0]), (3, &[]), (5, &[2, 3])]), Ok(vec![0, 2, 3, 5]));
        assert_eq!(order(&[(0, &[7]), (1, &[0, 4]), (4, &[]), (7, &[])]), Ok(vec![4, 7, 0, 1]));
        assert_eq!(order(&[]), Ok(Vec::new()));
    }

    #[test]
    fn a_circle_is_named_by_one_that_is_in_it() {
        assert_eq!(order(&[(0, &[0])]), Err(0));
        assert_eq!(
            order(&[(0, &[1]), (1, &[2]), (2, &[3]), (3, &[2])]).map_err(|stage| stage > 1),
            Err(true)
        );
    }
}
