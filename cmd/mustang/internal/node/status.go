// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
)

func (c commands) status() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the numbers of pods, services, policies and drops, and each problem",
		Long: `Show the numbers of pods, services, policies and dropped packets, and each problem with its remedy.
Problems are, for example, missing attachments, full maps, or settings of the host that drop packets of pods. -o wide
also shows programs, the fill and memory of maps, drops by reason, and missing features.

The command changes nothing and waits for no other command. Exit code 1 if it finds a problem.`,
		Example: "  mustang status\n  mustang status -o wide",
	}
	return cli.Listing(cmd, func(format string) error {
		r, err := readStatus(cmd.Context(), c.BPFRoot)
		if err != nil {
			return err
		}
		if format == "json" {
			err = json.MarshalEncode(jsontext.NewEncoder(c.Stdout, jsontext.WithIndent("  ")), r)
		} else {
			err = writeStatus(c.Stdout, r, format)
		}
		if n := len(r.Findings); err == nil && n > 0 {
			err = errors.New(count(n, "problem", "problems"))
		}
		return err
	})
}

type statusReport struct {
	Schema int    `json:"schema"`
	Root   string `json:"root"`
	objects.Pins
	Pods     int `json:"pods"`
	Services int `json:"services"`
	counted  bool
	Drops    []flows.Counter `json:"drops"` // since the maps were created
	Policies struct {
		Count   int  `json:"count"`
		Audited bool `json:"audited"` // denied packets pass
	} `json:"policies"`
	// Unguarded are the pods of this node that may send from any address, by NAMESPACE/NAME.
	Unguarded []string  `json:"source_guard_off"`
	Features  []feature `json:"features"`
	Findings  []finding `json:"problems"`
}

// finding is a fault and its remedy, one line each.
type finding struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// feature is an eBPF feature of the kernel. No service works without a required one.
type feature struct {
	Name      string `json:"name"`
	Required  bool   `json:"required"`
	Available bool   `json:"available"`
	Missing   string `json:"missing,omitzero"` // the reason why the kernel lacks it
	Needs     string `json:"-"`                // a Linux version, an option of the kernel's configuration, a command
}

const fullPart = 0.8 // the part of a map's rows from which on the map is reported

const netkitFeature = "netkit programs" // the name of the feature that only links of mode netkit need

// readStatus reads the datapath under root, objects.DefaultRoot if empty. Problems are findings, not errors.
func readStatus(ctx context.Context, root string) (*statusReport, error) {
	if os.Geteuid() != 0 {
		return nil, objects.ErrNotRoot
	}
	r := &statusReport{Schema: cli.Schema, Root: cmp.Or(root, objects.DefaultRoot)}
	r.readFeatures()
	if err := r.Read(r.Root); errors.Is(err, os.ErrNotExist) {
		return r, nil
	} else if err != nil {
		return nil, err
	}
	for _, dir := range r.Unloaded {
		r.find("mustang datapath unload", "a killed process left pins in %q", dir)
	}
	own := fmt.Sprintf("v%d", objects.LayoutVersion)
	for _, name := range r.Layouts {
		if name != own {
			r.find("mustang reset", "maps have layout %s, and this build has %s", name, own)
		}
	}
	if !slices.Contains(r.Layouts, own) {
		return r, nil
	}
	for _, m := range r.Maps {
		// LRU maps evict rows. The connection table is limited by its slots.
		if m.Size > 0 && m.Kind != "LRUHash" && m.Name != "connections" && float64(m.Rows) >= fullPart*float64(m.Size) {
			r.find("remove rows, or mustang datapath unload and larger maps", "map %s has %d of %d rows", m.Name, m.Rows,
				m.Size)
		}
	}
	for _, p := range r.Programs {
		if !p.Current {
			r.find("the next command that adds something replaces it", "program %s (%d links) is of another build", p.Pin,
				p.Attached)
		}
	}
	return r, r.readTables(ctx)
}

func (r *statusReport) find(do, what string, args ...any) {
	r.Findings = append(r.Findings, finding{What: fmt.Sprintf(what, args...), Do: do})
}

// isRequired reports whether no service works without a feature.
func isRequired(feature string) bool {
	return slices.Contains([]string{"bpffs", "BTF", "BPF JIT", "tcx"}, feature)
}

func (r *statusReport) readFeatures() {
	for _, f := range objects.Features(r.Root) {
		_, err := f.Probe()
		feature := feature{Name: f.Name, Required: isRequired(f.Name), Available: err == nil, Needs: f.Needs}
		if err != nil {
			feature.Missing = err.Error()
		}
		r.Features = append(r.Features, feature)
		switch {
		case !feature.Required || err == nil:
		case f.Name == "bpffs": // every kernel with BPF has it
			r.find(f.Needs, "%s is not on a bpffs, %s: none is mounted there", r.Root, f.Use)
		default:
			r.find(f.Needs, "the kernel lacks %s, %s: %v", f.Name, f.Use, err)
		}
	}
}

func (r *statusReport) readTables(ctx context.Context) (err error) {
	d, err := datapath.OpenExisting(datapath.Options{Root: r.Root})
	_, otherLayout := errors.AsType[*objects.LayoutError](err)
	switch {
	case errors.Is(err, os.ErrNotExist):
		r.find("any command that adds something", "maps are missing")
		return nil
	case otherLayout:
		if len(r.Layouts) == 1 {
			r.find("mustang reset", "maps have another layout than this build's of the same number")
		}
		return nil
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	counters, countersErr := d.Flows().Counters()
	r.Drops = slices.DeleteFunc(counters, func(c flows.Counter) bool { return !c.Drop })
	policies, policiesErr := d.Policies().List()
	r.Policies.Count = len(policies)
	audited, auditErr := d.Policies().Audited()
	r.Policies.Audited = audited
	services, servicesErr := d.Services().List(ctx)
	endpoints, err := d.Endpoints().List(ctx)
	if err == nil {
		err = d.Endpoints().Describe(endpoints)
	}
	if err := errors.Join(countersErr, policiesErr, auditErr, servicesErr, err); err != nil {
		return err
	}
	r.Services, r.counted = len(services), true
	ids := map[uint32]bool{} // a pod with two addresses has two endpoints
	for _, e := range endpoints {
		ids[e.ID] = true
	}
	r.Pods = len(ids)
	pods, podsErr := knownPods(d)
	for _, e := range endpoints {
		if p, ok := pods[e.IP]; ok && !e.Guarded {
			r.Unguarded = append(r.Unguarded, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(r.Unguarded)
	r.Unguarded = slices.Compact(r.Unguarded)
	if err := cmp.Or(podsErr, r.checkConnections(d.ConnectionTable())); err != nil {
		return err
	}
	r.checkEndpoints(endpoints)
	r.checkLinkGroups()
	return cmp.Or(r.checkSources(ctx, d, services, endpoints), r.checkRemains(ctx, d),
		r.checkHost(d, services, endpoints))
}

func (r *statusReport) checkConnections(table flows.Table) error {
	stats, err := table.Stats()
	if err != nil {
		return err
	}
	for i := range r.Maps {
		if r.Maps[i].Name == "slots" {
			r.Maps[i].Rows, r.Maps[i].Size = int64(stats.Open()), int64(stats.Slots)
		}
	}
	if stats.LargestOpen > 0 && stats.LargestOpen >= stats.Share {
		client := "clients outside"
		if stats.Largest.IsValid() {
			client = stats.Largest.String()
		}
		r.find("mustang conntrack stats", "%s: %d open connections; a client may have %d: new ones are dropped", client,
			stats.LargestOpen, stats.Share)
	}
	warnings, err := table.Warnings(0)
	for _, what := range warnings {
		r.find("set --connections, then reboot or mustang datapath unload", "%s", what)
	}
	return err
}

func (r *statusReport) checkEndpoints(all []datapath.Endpoint) {
	hooks := objects.EndpointHooks()
	for len(all) > 0 { // sorted by ID
		id := all[0].ID
		var addresses []string
		for ; len(all) > 0 && all[0].ID == id; all = all[1:] {
			addresses = append(addresses, all[0].IP.String())
		}
		links := r.linksOf(func(l objects.PinnedLink) bool { return l.ID == uint64(id) && slices.Contains(hooks, l.Hook) })
		if what := fmt.Sprintf("endpoint %d (%s)", id, strings.Join(addresses, ", ")); len(links) == 0 {
			r.find("mustang ep add", "%s lacks programs", what)
		} else if r.checkLinks(links, what, "mustang ep add") {
			r.find(fmt.Sprintf("mustang ep rm %d", id), "%s: its device is gone", what)
		}
	}
}

// checkLinkGroups finds uplinks and control groups that lack a program. Missing uplinks and groups count as remains.
func (r *statusReport) checkLinkGroups() {
	checked := map[string]bool{}
	for _, l := range r.Links {
		what, do := "", ""
		switch l.Hook.Point {
		case objects.AttachUplink:
			what, do = fmt.Sprintf("uplink with index %d", l.IfIndex), "mustang uplink add"
		case objects.AttachCgroup:
			what, do = fmt.Sprintf("control group %d", l.ID), "mustang socket attach"
		}
		if what != "" && !checked[what] {
			checked[what] = true
			r.checkLinks(r.linksOf(func(o objects.PinnedLink) bool {
				return o.Hook.Point == l.Hook.Point && o.ID == l.ID && o.IfIndex == l.IfIndex
			}), what, do)
		}
	}
}

// checkLinks finds programs missing at a point where others are attached, and reports whether none is.
func (r *statusReport) checkLinks(links []objects.PinnedLink, what, do string) (gone bool) {
	links = slices.DeleteFunc(links, func(l objects.PinnedLink) bool { return l.On == 0 })
	if len(links) == 0 {
		return true
	}
	var missing []string
	for _, hook := range links[0].Hook.Point.Hooks() {
		if !slices.ContainsFunc(links, func(l objects.PinnedLink) bool { return l.Hook == hook }) {
			missing = append(missing, hook.Program)
		}
	}
	if len(missing) > 0 {
		r.find(do, "%s lacks program %s", what, strings.Join(missing, ", "))
	}
	return false
}

func (r *statusReport) linksOf(match func(objects.PinnedLink) bool) []objects.PinnedLink {
	return slices.DeleteFunc(slices.Clone(r.Links), func(l objects.PinnedLink) bool { return !match(l) })
}

// checkRemains finds remains of killed or failed processes. A second look excludes most changes in progress.
func (r *statusReport) checkRemains(ctx context.Context, d *datapath.Datapath) error {
	remains, err := d.Remains()
	if err != nil || len(remains) == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(500 * time.Millisecond):
	}
	still, err := d.Remains()
	for _, what := range remains {
		if slices.Contains(still, what) {
			r.find("the next command that adds or removes something deletes it", "a change that did not end left %s", what)
		}
	}
	return err
}

// writeStatus writes a report as tables: first faults, then drops that happened and features that are missing. It omits
// the netkit feature: a command that needs netkit reports it.
// writeStatus writes five lines and the problems. The tables of programs, maps, drops and missing features follow in
// format wide.
func writeStatus(w io.Writer, r *statusReport, format string) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if !r.counted {
		loaded := "nothing is loaded"
		if len(r.Layouts) > 0 {
			loaded = "maps of layout " + strings.Join(r.Layouts, ", ")
		}
		fmt.Fprintf(tab, "%s: %s\n", r.Root, loaded)
	} else {
		var dropped uint64
		for _, drop := range r.Drops {
			dropped += drop.Packets
		}
		audited := map[bool]string{true: ", audited: denied packets pass"}[r.Policies.Audited]
		fmt.Fprintf(tab, "pods\t%d\nservices\t%d\npolicies\t%d%s\ndropped\t%s\n", r.Pods, r.Services,
			r.Policies.Count, audited, count(int(dropped), "packet", "packets"))
	}
	if len(r.Unguarded) > 0 {
		fmt.Fprintf(tab, "source guard off\t%s\n", strings.Join(r.Unguarded, ", "))
	}
	fmt.Fprintf(tab, "problems\t%d\n", len(r.Findings))
	for _, f := range r.Findings {
		fmt.Fprintf(tab, "  %s (what helps: %s)\n", f.What, f.Do)
	}
	if format != "wide" {
		return tab.Flush()
	}
	var programs, maps, drops, missing []string
	for _, p := range r.Programs {
		build := map[bool]string{true: "this", false: "another"}[p.Current]
		programs = append(programs, fmt.Sprintf("%s\t%d\t%s", p.Pin, p.Attached, build))
	}
	for _, m := range r.Maps {
		fill := "-\t-\t-"
		if m.Size > 0 {
			fill = fmt.Sprintf("%d\t%d\t%.1f %%", m.Rows, m.Size, 100*float64(m.Rows)/float64(m.Size))
		}
		maps = append(maps, fmt.Sprintf("%s\t%s\t%.1f MiB", m.Name, fill, float64(m.Bytes)/(1<<20)))
	}
	for _, d := range r.Drops {
		if d.Packets > 0 {
			drops = append(drops, fmt.Sprintf("%s\t%d\t%s", d.Name, d.Packets, d.Meaning))
		}
	}
	for _, f := range r.Features {
		if f.Missing != "" && f.Name != netkitFeature {
			missing = append(missing, fmt.Sprintf("%s\t%s\t%s", f.Name, f.Needs, f.Missing))
		}
	}
	table := func(header string, rows []string) {
		if len(rows) > 0 {
			fmt.Fprintf(tab, "\n%s\n%s\n", header, strings.Join(rows, "\n"))
		}
	}
	table("PROGRAM\tATTACHED\tBUILD", programs)
	table("MAP\tROWS\tSIZE\tFILL\tMEMORY", maps)
	table("DROPPED\tPACKETS\tMEANING", drops)
	table("MISSING FEATURE\tNEEDS\tREASON", missing)
	return tab.Flush()
}
