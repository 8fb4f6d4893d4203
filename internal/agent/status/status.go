// SPDX-License-Identifier: Apache-2.0

// Package status is what an agent reports of its work: to its socket, to probes, as metrics.
package status

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
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

// Report is what an agent tells.
type Report struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	Config
	// Unread is why the cluster cannot be read; empty: it can. Warnings are about the node.
	Unread   string   `json:"unread,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Synced is whether all has been written once.
	Synced bool `json:"synced"`
	// Sync are the rounds that write services and policies, Nodes those that join the node with others.
	Sync  Rounds  `json:"sync"`
	Nodes Rounds  `json:"nodes"`
	Kinds []Count `json:"kinds"`
	// Objects are those that were asked for, and Omitted how many more there are.
	Objects []Object `json:"objects"`
	Omitted int      `json:"omitted,omitempty"`
}

// Well reports whether all has been written once, and nothing is wrong.
func (r Report) Well() bool {
	return r.Unread == "" && r.Synced && r.Sync.Error == "" && r.Nodes.Error == "" &&
		!slices.ContainsFunc(r.Kinds, func(c Count) bool { return c.Wrong > 0 })
}

// Rounds tell how rounds of writing went. Times are zero where there was none, and durations are in seconds.
type Rounds struct {
	// First and Last are the ends of rounds that succeeded.
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last,omitzero"`
	// Waiting is since when a change waits to be written, or what failed to be written again.
	Waiting time.Time `json:"waitingSince,omitzero"`
	Running time.Time `json:"runningSince,omitzero"`
	Number  int       `json:"number"`
	Failed  int       `json:"failed"`
	Took    float64   `json:"tookSeconds"`
	Mean    float64   `json:"meanSeconds"`
	Longest float64   `json:"longestSeconds"`
	Error   string    `json:"error,omitempty"`
}

// Count counts objects of a kind, and what they want in the tables.
type Count struct {
	Kind     string `json:"kind"`
	Objects  int    `json:"objects"`
	Wanted   int    `json:"wanted"`
	InTables int    `json:"inTables"`
	Waiting  int    `json:"waiting"`
	Wrong    int    `json:"wrong"`
	// Notes counts the objects that have some.
	Notes int `json:"notes"`
}

// State is how an object is.
type State string

// The states: as it should be; to be written yet; not as it should be.
const (
	Well    State = "ok"
	Waiting State = "waiting"
	Wrong   State = "wrong"
)

// Object is an object of the cluster, or something in the tables that has none.
type Object struct {
	Kind      string  `json:"kind"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name"`
	State     State   `json:"state"`
	Entries   []Entry `json:"entries,omitempty"`
	// Why tells what is wrong besides entries, and Notes what was left out as it should be.
	Why   []string `json:"why,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Entry is what an object wants in the tables: a frontend, a route, an address.
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

// Query selects objects.
type Query struct {
	// Kind is one of a report's kinds, its plural, kubectl's short name, or "policy" for all policies; empty: those that
	// are wrong.
	Kind string
	// Name is "web" or "shop/web"; empty: all.
	Name string
	// Wrong selects those that are wrong alone.
	Wrong bool
	// Limit is how many objects there are to be at most; 0: all.
	Limit int
}

// The kinds of objects.
const (
	Service              = "service"
	EndpointSlice        = "endpointslice"
	NetworkPolicy        = "networkpolicy"
	ClusterNetworkPolicy = "clusternetworkpolicy"
	Node                 = "node"
	Pod                  = "pod"
	Namespace            = "namespace"
)

// Validate refuses a kind that there is not.
func (q Query) Validate() error {
	kinds := []string{Service, NetworkPolicy, ClusterNetworkPolicy, Node, Pod}
	if q.Kind == "" || slices.ContainsFunc(kinds, q.isKind) {
		return nil
	}
	return fmt.Errorf("kind %q: want policy, %s", q.Kind, strings.Join(kinds, ", "))
}

func (q Query) matches(o Object) bool {
	if q.Name != "" && q.Name != o.Name && q.Name != o.fullName() {
		return false
	}
	if (q.Wrong || q.Kind == "") && o.State != Wrong {
		return false
	}
	return q.Kind == "" || q.isKind(o.Kind)
}

// words are the words for kinds besides their own, as kubectl has them.
var words = map[string][]string{
	Service: {"services", "svc"}, Node: {"nodes", "no"}, Pod: {"pods", "po"},
	NetworkPolicy:        {"networkpolicies", "netpol", "policy", "policies"},
	ClusterNetworkPolicy: {"clusternetworkpolicies", "policy", "policies"},
}

// isKind reports whether a kind is the one that is asked for.
func (q Query) isKind(kind string) bool {
	asked := strings.ToLower(q.Kind)
	return asked == kind || slices.Contains(words[kind], asked)
}

// Path returns the request of a query, and ParseQuery reads one.
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

// Fill counts objects, with kinds that there are to be counts of, and keeps those that a query selects, the wrong ones
// first.
func (r *Report) Fill(q Query, kinds []string, objects []Object) {
	counts, kinds := map[string]*Count{}, slices.Clone(kinds)
	for _, k := range kinds {
		counts[k] = &Count{Kind: k}
	}
	r.Objects = []Object{}
	for _, o := range objects {
		o.settle()
		c := counts[o.Kind]
		if c == nil {
			c = &Count{Kind: o.Kind}
			counts[o.Kind], kinds = c, append(kinds, o.Kind)
		}
		c.Objects++
		if len(o.Notes) > 0 {
			c.Notes++
		}
		c.Wanted += len(o.Entries)
		for _, e := range o.Entries {
			if e.InTables {
				c.InTables++
			}
		}
		switch o.State {
		case Waiting:
			c.Waiting++
		case Wrong:
			c.Wrong++
		}
		if q.matches(o) {
			r.Objects = append(r.Objects, o)
		}
	}
	for _, k := range kinds {
		r.Kinds = append(r.Kinds, *counts[k])
	}
	slices.SortStableFunc(r.Objects, func(a, b Object) int {
		return cmp.Or(order(a.State)-order(b.State), cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if q.Limit > 0 && len(r.Objects) > q.Limit {
		r.Omitted = len(r.Objects) - q.Limit
		r.Objects = r.Objects[:q.Limit]
	}
}

// settle sets the state of an object that does not wait.
func (o *Object) settle() {
	switch {
	case o.State == Waiting:
	case len(o.Why) > 0 || slices.ContainsFunc(o.Entries, func(e Entry) bool { return e.Why != "" }):
		o.State = Wrong
	default:
		o.State = Well
	}
}

func order(s State) int { return slices.Index([]State{Wrong, Waiting, Well}, s) }
