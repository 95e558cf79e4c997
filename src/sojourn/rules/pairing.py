"""Rules and policies that are two halves of one algorithm, and have to agree."""

from sojourn.dispatch import Attempts, FirstOf, Policy, Restart
from sojourn.errors import InvalidInput
from sojourn.rules.attempts import MindFlayer, Shadowheart
from sojourn.rules.gradients import MSynchronousSGD, Rennala, Ringmaster
from sojourn.rules.state import Rule


def check_pair(rule: Rule, policy: Policy, clients: int) -> None:
    """Raise if the knobs of ``rule`` and ``policy`` contradict one another.

    >>> check_pair(MSynchronousSGD(first=3), FirstOf(first=2), clients=5)
    Traceback (most recent call last):
    ...
    sojourn.errors.InvalidInput: the rule 'm-synchronous' takes the first 3 results, but the policy 'first-of' stops after 2: give both the same 'first'
    """
    if isinstance(policy, FirstOf):
        if isinstance(rule, MSynchronousSGD) and rule.first != policy.first:
            raise InvalidInput(
                f"the rule '{rule.name}' takes the first {rule.first} results, but the policy "
                f"'{policy.name}' stops after {policy.first}: give both the same 'first'"
            )
        if isinstance(rule, Rennala) and rule.batch_size != policy.first:
            raise InvalidInput(
                f"the rule '{rule.name}' collects {rule.batch_size} gradients, but the policy "
                f"'{policy.name}' stops after {policy.first}: let its 'first' be the 'batch-size'"
            )
    elif isinstance(policy, Restart) and isinstance(rule, Ringmaster):
        if rule.max_staleness < policy.max_staleness:
            raise InvalidInput(
                f"the rule '{rule.name}' drops what is {rule.max_staleness} versions old, but the policy "
                f"'{policy.name}' stops tasks only at {policy.max_staleness}: give both the same "
                "'max-staleness'"
            )
    elif isinstance(policy, Attempts):
        _check_attempts(rule, policy.quotas(clients), clients)


def _check_attempts(rule: Rule, quotas: list[int], clients: int) -> None:
    if isinstance(rule, MindFlayer):
        wanted = clients if rule.attempts is None else rule.attempts
        if wanted != sum(quotas):
            raise InvalidInput(
                f"the rule '{rule.name}' waits for {wanted} attempts, but its policy makes "
                f"{sum(quotas)} in a round: let 'attempts' of the rule be the sum over the clients"
            )
    elif isinstance(rule, Shadowheart) and rule.quotas(clients) != quotas:
        raise InvalidInput(
            f"the rule '{rule.name}' waits for {sum(rule.quotas(clients))} gradients of its clients, "
            f"but its policy asks for {sum(quotas)}: let 'attempts' of the policy be the rule's "
            "'gradients', and 0 for clients without messages"
        )
