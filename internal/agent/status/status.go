// SPDX-License-Identifier: Apache-2.0

// Package status reports an agent's work: at its socket, to probes, as metrics.
package status

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Schema is the version of the JSON.
const Schema = 1

// ServicesOff is the value of Config.Services where no pod is an endpoint.
const ServicesOff = "off"

// Config is how an agent was started.
type Config struct {
	Node     string `json:"node"`
	Version  string `json:"version"`
	PID      int    `json:"pid"`
	Link     string `json:"link"`
	Services string `json:"services"`
	Routing  string `json:"routing"`
}

// Report is an agent's report.
type Report struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	Config
	Unread   string   `json:"unread,omitempty"` // why the cluster cannot be read; empty: it can
	Warnings []string `json:"warnings,omitempty"`
	Synced   bool     `json:"synced"` // all has been written once
	Sync     Rounds   `json:"sync"`   // rounds that write services and policies
	Nodes    Rounds   `json:"nodes"`  // rounds that join the node with others
	Paths    []Path   `json:"paths,omitempty"`
	Kinds    []Count  `json:"kinds"`
	Objects  []Object `json:"objects"` // that match the query, up to its limit
	Omitted  int      `json:"omitted,omitempty"`
}

// Well reports whether all has been written once, and nothing is wrong.
func (r Report) Well() bool {
	return r.Unread == "" && r.Synced && r.Sync.Error == "" && r.Nodes.Error == "" &&
		!slices.ContainsFunc(r.Kinds, func(c Count) bool { return c.Wrong > 0 })
}

// Rounds describe rounds of writing. A time is zero if it has not occurred. Durations are in seconds.
type Rounds struct {
	First   time.Time `json:"first,omitzero"` // when the first round without an error ended; Last: the latest one
	Last    time.Time `json:"last,omitzero"`
	Waiting time.Time `json:"waitingSince,omitzero"` // since when a change or a failed write waits; zero if none does
	Running time.Time `json:"runningSince,omitzero"`
	Number  int       `json:"number"`
	Failed  int       `json:"failed"`
	Took    float64   `json:"tookSeconds"`
	Mean    float64   `json:"meanSeconds"`
	Longest float64   `json:"longestSeconds"`
	Error   string    `json:"error,omitempty"`
}

// Count counts objects of a kind, and their entries in the tables.
type Count struct {
	Kind     string `json:"kind"`
	Objects  int    `json:"objects"`
	Wanted   int    `json:"wanted"`
	InTables int    `json:"inTables"`
	Waiting  int    `json:"waiting"`
	Wrong    int    `json:"wrong"`
	Notes    int    `json:"notes"` // objects with notes
}

// State is the state of an object.
type State string

// The states: in order; waiting to be written; faulty.
const (
	Well    State = "ok"
	Waiting State = "waiting"
	Wrong   State = "wrong"
)

// Object is an object of the cluster, or rows in the tables without an object.
type Object struct {
	Kind      string  `json:"kind"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name"`
	State     State   `json:"state"`
	Entries   []Entry `json:"entries,omitempty"`
	// Why lists faults that are not about entries, and Notes intended omissions.
	Why   []string `json:"why,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Entry is a frontend, route or address that an object should have in the tables.
type Entry struct {
	What     string `json:"what"`
	Detail   string `json:"detail,omitempty"`
	InTables bool   `json:"inTables"`
	Why      string `json:"why,omitempty"`
}

// String returns "service shop/web".
func (o Object) String() string { return o.Kind + " " + o.fullName() }

func (o Object) fullName() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// The kinds of objects.
const (
	Service              = "service"
	NetworkPolicy        = "networkpolicy"
	ClusterNetworkPolicy = "clusternetworkpolicy"
	Node                 = "node"
	Pod                  = "pod"
)

// kinds are the kinds that a query may name, by each of their words: kubectl's, and "policy" for all policies.
var kinds = []struct{ kind, words string }{
	{Service, "service services svc"}, {NetworkPolicy, "networkpolicy networkpolicies netpol policy policies"},
	{ClusterNetworkPolicy, "clusternetworkpolicy clusternetworkpolicies policy policies"}, {Node, "node nodes no"},
	{Pod, "pod pods po"},
}

// Query selects objects.
type Query struct {
	Kind  string // a word of kinds; empty: the objects with faults
	Name  string // "web" or "shop/web"; empty: all
	Wrong bool   // only objects with faults
	Limit int    // the largest number of objects; 0: all
}

func (q Query) named() (all []string) {
	for _, k := range kinds {
		if slices.Contains(strings.Fields(k.words), strings.ToLower(q.Kind)) {
			all = append(all, k.kind)
		}
	}
	return all
}

// Validate refuses an unknown kind.
func (q Query) Validate() error {
	if q.Kind == "" || len(q.named()) > 0 {
		return nil
	}
	want := "policy"
	for _, k := range kinds {
		want += ", " + k.kind
	}
	return fmt.Errorf("kind %q: want %s", q.Kind, want)
}

// Path returns the request of a query, for ParseQuery.
func (q Query) Path() string {
	v := url.Values{"kind": {q.Kind}, "name": {q.Name}, "limit": {fmt.Sprint(q.Limit)}, "wrong": {fmt.Sprint(q.Wrong)}}
	return "/status?" + v.Encode()
}

// ParseQuery reads a query from a request.
func ParseQuery(v url.Values) (q Query) {
	q = Query{Kind: v.Get("kind"), Name: v.Get("name"), Wrong: v.Get("wrong") == "true"}
	_, _ = fmt.Sscan(v.Get("limit"), &q.Limit) // 0 where there is none
	return q
}

// Fill counts objects, with a count for each of kinds, and keeps the objects that a query selects, faulty ones first.
func (r *Report) Fill(q Query, kinds []string, objects []Object) {
	r.Objects = []Object{}
	for _, k := range kinds {
		r.Kinds = append(r.Kinds, Count{Kind: k})
	}
	place := func(kind string) int { return slices.IndexFunc(r.Kinds, func(c Count) bool { return c.Kind == kind }) }
	for _, o := range objects {
		if place(o.Kind) < 0 {
			r.Kinds = append(r.Kinds, Count{Kind: o.Kind})
		}
		r.Kinds[place(o.Kind)].add(&o)
		named := q.Name == "" || q.Name == o.Name || q.Name == o.fullName()
		ofKind := q.Kind == "" || slices.Contains(q.named(), o.Kind)
		if named && ofKind && (o.State == Wrong || !q.Wrong && q.Kind != "") {
			r.Objects = append(r.Objects, o)
		}
	}
	order := []State{Wrong, Waiting, Well}
	slices.SortStableFunc(r.Objects, func(a, b Object) int {
		return cmp.Or(slices.Index(order, a.State)-slices.Index(order, b.State), place(a.Kind)-place(b.Kind),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if more := len(r.Objects) - q.Limit; q.Limit > 0 && more > 0 {
		r.Omitted, r.Objects = more, r.Objects[:q.Limit]
	}
}

// add counts an object, and sets its state unless it waits.
func (c *Count) add(o *Object) {
	c.Objects++
	c.Wanted += len(o.Entries)
	wrong := len(o.Why) > 0
	for _, e := range o.Entries {
		wrong = wrong || e.Why != ""
		if e.InTables {
			c.InTables++
		}
	}
	if len(o.Notes) > 0 {
		c.Notes++
	}
	switch {
	case o.State == Waiting:
		c.Waiting++
	case wrong:
		o.State = Wrong
		c.Wrong++
	default:
		o.State = Well
	}
}

// WriteText writes a report as one screen, or the objects of the query. Unprintable characters are shown as "?".
func WriteText(w io.Writer, r Report, q Query) error {
	t := text{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	if q.Kind == "" && !q.Wrong {
		t.head(r)
	}
	for _, o := range r.Objects {
		t.object(o)
	}
	if r.Omitted > 0 {
		t.line("and %d more that are wrong: --wrong shows all", r.Omitted)
	}
	return t.Flush()
}

type text struct{ *tabwriter.Writer }

func (t text) line(format string, args ...any) {
	fmt.Fprintln(t, strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
}

func (t text) head(r Report) {
	t.line("node\t%s", r.Node)
	t.line("agent\tmustang %s, process %d", r.Version, r.PID)
	t.line("pods\tlink %s, services %s, routing %s", r.Link, r.Services, r.Routing)
	for _, text := range r.Warnings {
		t.line("\twarning: %s", text)
	}
	if r.Unread != "" {
		t.line("cluster\terror: %s", r.Unread)
	}
	t.rounds("sync", r.Sync, r.Time)
	if r.Nodes.Number > 0 {
		t.rounds("nodes", r.Nodes, r.Time)
	}
	t.line("")
	t.line("KIND\tOBJECTS\tWANTED\tINSTALLED\tWAITING\tWRONG\tNOTES")
	for _, c := range r.Kinds {
		t.line("%s\t%d\t%d\t%d\t%d\t%d\t%d", c.Kind, c.Objects, c.Wanted, c.InTables, c.Waiting, c.Wrong, c.Notes)
	}
	t.paths(r.Paths, r.Time)
	if len(r.Objects) > 0 {
		t.line("")
	}
}

func (t text) rounds(name string, r Rounds, now time.Time) {
	if r.First.IsZero() {
		t.line("%s\tnot all has been written yet", name)
	} else {
		t.line("%s\tfirst %s, last %s", name, ago(r.First, now), ago(r.Last, now))
	}
	if r.Number > 0 {
		word := map[bool]string{true: "round", false: "rounds"}[r.Number == 1]
		t.line("\t%d %s, %d failed; the last took %s, the longest %s, on average %s", r.Number, word, r.Failed, span(r.Took),
			span(r.Longest), span(r.Mean))
	}
	if !r.Running.IsZero() {
		t.line("\ta round runs since %s: what it writes may be installed in part", ago(r.Running, now))
	}
	if !r.Waiting.IsZero() {
		t.line("\ta change waits since %s", ago(r.Waiting, now))
	}
	for line := range strings.Lines(r.Error) {
		t.line("\terror: %s", strings.TrimSpace(line))
	}
}

func (t text) object(o Object) {
	t.line("%s %s: %s", o.Kind, o.fullName(), o.State)
	for _, e := range o.Entries {
		state := "not installed"
		if e.InTables {
			state = "installed"
		} else if o.Kind == Service {
			state = "not served"
		}
		if e.Why != "" {
			state += ": " + e.Why
		}
		t.line("  %s\t%s\t%s", e.What, e.Detail, state)
	}
	for _, why := range o.Why {
		t.line("  %s", why)
	}
	for _, note := range o.Notes {
		t.line("  note: %s", note)
	}
}

// ago returns "4 s ago": in the largest unit with a value of at least two.
func ago(at, now time.Time) string {
	d := now.Sub(at)
	if d < 0 {
		return at.Format(time.RFC3339)
	}
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}} {
		if d >= 2*u.unit {
			return fmt.Sprintf("%d %s ago", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d s ago", d/time.Second)
}

func span(seconds float64) string {
	switch {
	case seconds < 0.01:
		return fmt.Sprintf("%.1f ms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.1f s", seconds)
}
