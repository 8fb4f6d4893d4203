// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"strconv"

	"sigs.k8s.io/knftables"

	"mustang/internal/netns"
)

// nftablesList is the list as rules of a host, with what nftables has for long ones: a verdict map leads to the pod's chain, and one set
// of ranges of addresses with protocol and port has all rules.
type nftablesList struct {
	host *netns.Namespace
	nft  knftables.Interface
}

var nftablesPlace = rulesPlace{table: "mustang-policy", first: "forward", second: "pod-" + allowlistName}

// openNFTables finds out what the program nft can do, and changes nothing.
func openNFTables(host *netns.Namespace) (*nftablesList, error) {
	t := &nftablesList{host: host}
	err := host.Do(func() (err error) {
		t.nft, err = knftables.New(knftables.IPv4Family, nftablesPlace.table)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("allow list with nftables: %w", err)
	}
	return t, nil
}

// Write writes a list into a host that has none, in one transaction.
func (t *nftablesList) Write(ctx context.Context, l allowlist) error {
	return t.run(ctx, func(tx *knftables.Transaction) {
		tx.Add(&knftables.Table{})
		tx.Add(&knftables.Chain{
			Name: nftablesPlace.first, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.ForwardHook),
			Priority: knftables.PtrTo(knftables.FilterPriority),
		})
		tx.Add(&knftables.Chain{Name: nftablesPlace.second})
		tx.Add(&knftables.Map{Name: "pods", Type: "ipv4_addr : verdict"})
		tx.Add(&knftables.Set{
			Name: allowlistName, Type: "ipv4_addr . inet_proto . inet_service", Flags: []knftables.SetFlag{knftables.IntervalFlag},
		})
		tx.Add(&knftables.Element{Map: "pods", Key: []string{l.Pod.String()}, Value: []string{"goto " + nftablesPlace.second}})
		for _, r := range l.Rules {
			tx.Add(r.element())
		}
		for _, rule := range [][2]string{ // Linux 6.12 looks up no meta l4proto among intervals
			{nftablesPlace.first, "ct state established,related counter accept"},
			{nftablesPlace.first, "ip daddr vmap @pods"},
			{nftablesPlace.second, "ip saddr . ip protocol . th dport @" + allowlistName + " counter accept"},
			{nftablesPlace.second, "counter drop"},
		} {
			tx.Add(&knftables.Rule{Chain: rule[0], Rule: rule[1]})
		}
	})
}

// element returns the rule as an element of the set.
func (r allowRule) element() *knftables.Element {
	return &knftables.Element{Set: allowlistName, Key: []string{r.From.String(), "tcp", strconv.Itoa(int(r.Port))}}
}

// Add adds a rule: one element of the set.
func (t *nftablesList) Add(ctx context.Context, _ allowlist, r allowRule) error {
	return t.run(ctx, func(tx *knftables.Transaction) { tx.Add(r.element()) })
}

// Remove removes a rule that Add has added.
func (t *nftablesList) Remove(ctx context.Context, _ allowlist, r allowRule) error {
	return t.run(ctx, func(tx *knftables.Transaction) { tx.Delete(r.element()) })
}

// Clear removes what Write wrote.
func (t *nftablesList) Clear(ctx context.Context) error {
	return t.run(ctx, func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) })
}

// Counters reads the rules' counters. Allowed is that of the rule that asks the set.
func (t *nftablesList) Counters() (map[string]uint64, error) { return nftablesPlace.counters(t.host) }

func (t *nftablesList) run(ctx context.Context, fill func(*knftables.Transaction)) error {
	tx := t.nft.NewTransaction()
	fill(tx)
	if err := t.host.Do(func() error { return t.nft.Run(ctx, tx) }); err != nil {
		return fmt.Errorf("allow list with nftables: %w", err)
	}
	return nil
}
