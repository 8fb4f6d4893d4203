// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
)

// checkEndpoints finds endpoints that lack a program or whose device is gone.
func (r *statusReport) checkEndpoints(all []datapath.Endpoint) {
	hooks := objects.EndpointHooks()
	for len(all) > 0 { // sorted by ID
		id := all[0].ID
		var addresses []string
		for ; len(all) > 0 && all[0].ID == id; all = all[1:] {
			addresses = append(addresses, all[0].IP.String())
		}
		links := r.linksOf(func(l objects.PinnedLink) bool { return l.ID == uint64(id) && slices.Contains(hooks, l.Hook) })
		what := fmt.Sprintf("endpoint %d (%s)", id, strings.Join(addresses, ", "))
		switch {
		case len(links) == 0:
			r.find("mustang ep add", "%s lacks programs", what)
		case isGone(links):
			r.find(fmt.Sprintf("mustang ep rm %d", id), "%s: its device is gone", what)
		default:
			r.checkLinks(links, what, "mustang ep add")
		}
	}
}

// isGone reports whether no link has a target.
func isGone(links []objects.PinnedLink) bool {
	return !slices.ContainsFunc(links, func(l objects.PinnedLink) bool { return l.On != 0 })
}

// checkLinks finds programs missing at a point where others are attached.
func (r *statusReport) checkLinks(links []objects.PinnedLink, what, do string) {
	var missing []string
	for _, hook := range links[0].Hook.Point.Hooks() {
		if !slices.ContainsFunc(links, func(l objects.PinnedLink) bool { return l.Hook == hook && l.On != 0 }) {
			missing = append(missing, hook.Program)
		}
	}
	if len(missing) > 0 {
		r.find(do, "%s lacks program %s", what, strings.Join(missing, ", "))
	}
}

// checkLinkGroups finds uplinks and control groups that lack a program. Missing uplinks and groups count as remains.
func (r *statusReport) checkLinkGroups() {
	type group struct{ what, do string }
	groups := make(map[group][]objects.PinnedLink)
	var order []group
	for _, l := range r.Links {
		var g group
		switch l.Hook.Point {
		case objects.AttachUplink:
			g = group{fmt.Sprintf("uplink with index %d", l.IfIndex), "mustang uplink add"}
		case objects.AttachCgroup:
			g = group{fmt.Sprintf("control group %d", l.ID), "mustang socket attach"}
		default:
			continue
		}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], l)
	}
	for _, g := range order {
		if !isGone(groups[g]) {
			r.checkLinks(groups[g], g.what, g.do)
		}
	}
}

// checkSources finds uplinks without an address of a family in which outside clients are sent to other nodes: the
// packets need the address as their source.
func (r *statusReport) checkSources(ctx context.Context, d *datapath.Datapath, endpoints []datapath.Endpoint) error {
	uplinks, err := d.Uplinks().List(ctx)
	if err != nil || len(uplinks) == 0 {
		return err
	}
	services, err := d.Services().List(ctx)
	if err != nil {
		return err
	}
	pods := make(map[netip.Addr]bool, len(endpoints))
	for _, e := range endpoints {
		pods[e.IP] = true
	}
	calls := make(map[bool]string) // a service of each family: true is IPv4
	for _, s := range services {
		for _, b := range s.Backends {
			if (s.External || s.NodePort) && !b.Local && !pods[b.Addr.Addr()] {
				calls[s.Frontend.Addr().Is4()] = s.String()
				break
			}
		}
	}
	for _, u := range uplinks {
		have, err := d.Uplinks().Source(u)
		if err != nil {
			return err
		}
		for _, is4 := range []bool{true, false} {
			lacks := !slices.ContainsFunc(have, func(addr netip.Addr) bool { return addr.Is4() == is4 })
			if family := map[bool]string{true: "IPv4", false: "IPv6"}[is4]; lacks && calls[is4] != "" {
				r.find("give it one, then mustang uplink add",
					"uplink with index %d lacks an %s address: backends on other nodes, for example of %s, are not reached by it",
					u.IfIndex, family, calls[is4])
			}
		}
	}
	return nil
}

// linksOf returns the links that match.
func (r *statusReport) linksOf(match func(objects.PinnedLink) bool) []objects.PinnedLink {
	return slices.DeleteFunc(slices.Clone(r.Links), func(l objects.PinnedLink) bool { return !match(l) })
}
