// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"mustang/internal/lab"
	"mustang/internal/nl"
)

// passed lists the hooks of a place's IP layer that at least so many packets
// passed, by its counters.
func passed(c nl.IPCounts, least uint64) map[string]bool {
	return map[string]bool{
		"prerouting":  c.Delivered+c.Forwarded >= least,
		"input":       c.Delivered >= least,
		"forward":     c.Forwarded >= least,
		"output":      c.Sent >= least,
		"postrouting": c.Sent+c.Forwarded >= least,
	}
}

// hooks lists the chains of rules for IPv4 that the sample's packets met. A bridge
// that calls netfilter does so without the IP layer, which then counts nothing.
func (w witness) hooks(l *lab.Lab, before, after counts) ([]string, error) {
	forth, back := w.packets()
	least := max(min(forth, back), 1)
	var out []string
	for _, place := range l.Places() {
		chains, err := l.Hooks(place)
		if err != nil {
			return nil, err
		}
		now, earlier := after.ip[place], before.ip[place]
		met := passed(nl.IPCounts{
			Delivered: now.Delivered - earlier.Delivered, Forwarded: now.Forwarded - earlier.Forwarded, Sent: now.Sent - earlier.Sent,
		}, least)
		for _, chain := range chains {
			called := w.lab.NetfilterCall && place == lab.Host && chain.Hook != "input" && chain.Hook != "output"
			if chain.Family != "ip6" && (met[chain.Hook] || called) {
				out = append(out, fmt.Sprintf("%s: %s %s %s (%s)", place, chain.Family, chain.Table, chain.Chain, chain.Hook))
			}
		}
	}
	return out, nil
}
