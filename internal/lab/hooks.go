// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"

	"github.com/google/nftables"
)

// HookChain is a chain of rules at a netfilter hook.
type HookChain struct {
	Hook string // "prerouting", "input", "forward", "output" or "postrouting"
	// Family is "ip", "ip6" or "inet".
	Family, Table, Chain string
}

var hookNames = map[nftables.ChainHook]string{
	*nftables.ChainHookPrerouting: "prerouting", *nftables.ChainHookInput: "input", *nftables.ChainHookForward: "forward",
	*nftables.ChainHookOutput: "output", *nftables.ChainHookPostrouting: "postrouting",
}

var familyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// Hooks returns the nftables chains at the IP hooks of a place, including the chains of iptables-nft.
func (l *Lab) Hooks(place string) ([]HookChain, error) {
	ns, err := l.Namespace(place)
	if err != nil {
		return nil, err
	}
	conn, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	var chains []*nftables.Chain
	if err == nil {
		chains, err = conn.ListChains()
	}
	if err != nil {
		return nil, fmt.Errorf("netfilter hooks of %s: %w", place, err)
	}
	var out []HookChain
	for _, chain := range chains {
		if chain.Hooknum == nil || chain.Table == nil {
			continue
		}
		name, family := hookNames[*chain.Hooknum], familyNames[chain.Table.Family]
		if name != "" && family != "" {
			out = append(out, HookChain{Hook: name, Family: family, Table: chain.Table.Name, Chain: chain.Name})
		}
	}
	return out, nil
}
