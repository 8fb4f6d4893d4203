// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
)

// checkEndpoints finds endpoints that lack a program or whose device is gone.
func (r *Report) checkEndpoints(all []datapath.Endpoint) {
	addresses := make(map[uint32][]string)
	var ids []uint32
	for _, e := range all {
		if addresses[e.ID] == nil {
			ids = append(ids, e.ID)
		}
		addresses[e.ID] = append(addresses[e.ID], e.IP.String())
	}
	hooks := objects.EndpointHooks()
	for _, id := range ids {
		links := r.linksOf(func(l Link) bool { return l.ID == uint64(id) && slices.Contains(hooks, l.Hook) })
		what := fmt.Sprintf("endpoint %d (%s)", id, strings.Join(addresses[id], ", "))
		if isGone(links) {
			r.find(fmt.Sprintf("mustang ep rm %d", id), "%s: its device is gone", what)
			continue
		}
		r.checkLinks(links, what, "mustang ep add")
	}
}

// isGone reports whether there are links, none of which has a target.
func isGone(links []Link) bool {
	return len(links) > 0 && !slices.ContainsFunc(links, func(l Link) bool { return l.On != 0 })
}

// checkLinks finds programs that a point with some of its links lacks.
func (r *Report) checkLinks(links []Link, what, do string) {
	if len(links) == 0 {
		r.find(do, "%s has no programs", what)
		return
	}
	var missing []string
	for _, hook := range links[0].Hook.Point.Hooks() {
		if !slices.ContainsFunc(links, func(l Link) bool { return l.Hook == hook && l.On != 0 }) {
			missing = append(missing, hook.Program)
		}
	}
	if len(missing) > 0 {
		r.find(do, "%s lacks program %s", what, strings.Join(missing, ", "))
	}
}

// checkUplinks finds uplinks that lack a program. Those whose device is gone are remains.
func (r *Report) checkUplinks() {
	r.checkGroups(objects.AttachUplink, func(l Link) string { return fmt.Sprintf("uplink with index %d", l.IfIndex) }, "mustang uplink add")
}

// checkCgroups finds control groups that lack a program.
func (r *Report) checkCgroups() {
	r.checkGroups(objects.AttachCgroup, func(l Link) string { return fmt.Sprintf("control group %d", l.ID) }, "mustang socket attach")
}

// checkGroups checks the links of a point, grouped by name.
func (r *Report) checkGroups(point objects.AttachPoint, name func(Link) string, do string) {
	groups := make(map[string][]Link)
	var order []string
	for _, l := range r.Links {
		if l.Hook.Point != point {
			continue
		}
		if groups[name(l)] == nil {
			order = append(order, name(l))
		}
		groups[name(l)] = append(groups[name(l)], l)
	}
	for _, what := range order {
		if !isGone(groups[what]) {
			r.checkLinks(groups[what], what, do)
		}
	}
}
