// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// objects are one of each state, and something without an object.
func objects() []Object {
	return []Object{
		{Kind: Service, Namespace: "shop", Name: "web", Entries: []Entry{{What: "10.96.0.1:80/tcp", InTables: true}}},
		{Kind: Service, Namespace: "shop", Name: "bad", Entries: []Entry{{What: "10.96.0.2:80/tcp", Why: "no"}}},
		{Kind: Service, Namespace: "shop", Name: "new", State: Waiting, Entries: []Entry{{What: "10.96.0.3:80/tcp"}}},
		{Kind: ClusterNetworkPolicy, Name: "deny", Why: []string{"no room"}},
		{Kind: NetworkPolicy, Namespace: "shop", Name: "allow"},
	}
}

// TestFill counts objects, and selects them.
func TestFill(t *testing.T) {
	for _, test := range []struct {
		query   Query
		want    string
		omitted int
	}{
		{Query{}, "service shop/bad, clusternetworkpolicy deny", 0},
		{Query{Limit: 1}, "service shop/bad", 1},
		{Query{Wrong: true}, "service shop/bad, clusternetworkpolicy deny", 0},
		{Query{Kind: "services"}, "service shop/bad, service shop/new, service shop/web", 0},
		{Query{Kind: "service", Wrong: true}, "service shop/bad", 0},
		{Query{Kind: "Service", Name: "web"}, "service shop/web", 0},
		{Query{Kind: "service", Name: "shop/web"}, "service shop/web", 0},
		{Query{Kind: "service", Name: "other/web"}, "", 0},
		{Query{Kind: "policy"}, "clusternetworkpolicy deny, networkpolicy shop/allow", 0},
		{Query{Kind: "policies"}, "clusternetworkpolicy deny, networkpolicy shop/allow", 0},
		{Query{Kind: "networkpolicies"}, "networkpolicy shop/allow", 0},
		{Query{Kind: "pods"}, "", 0},
		{Query{Kind: "svc", Name: "web"}, "service shop/web", 0},
		{Query{Kind: "netpol"}, "networkpolicy shop/allow", 0},
	} {
		testkit.Succeed(t, test.query.Validate())
		var r Report
		asked := testkit.Must(url.Parse(test.query.Path()))(t)
		q := ParseQuery(asked.Query())
		testkit.Check(t, q == test.query, "%+v is read as %+v", test.query, q)
		r.Fill(test.query, []string{Service, NetworkPolicy, Pod}, objects())
		var names []string
		for _, o := range r.Objects {
			names = append(names, o.String())
		}
		if have := strings.Join(names, ", "); have != test.want || r.Omitted != test.omitted {
			t.Errorf("%+v selects %q, and omits %d", test.query, have, r.Omitted)
		}
		want := []Count{{Service, 3, 3, 1, 1, 1, 0}, {NetworkPolicy, 1, 0, 0, 0, 0, 0}, {Kind: Pod}, {ClusterNetworkPolicy, 1,
			0, 0, 0, 1, 0}}
		testkit.Check(t, reflect.DeepEqual(r.Kinds, want), "counts are %+v, want %+v", r.Kinds, want)
		r.Synced = true
		testkit.Check(t, !r.Well(), "it is well")
	}
	for kind, known := range map[string]bool{"po": true, "no": true, "secret": false, "namespace": false,
		"endpointslice": false} {
		err := (Query{Kind: kind}).Validate()
		testkit.Check(t, (err == nil) == known, "kind %s: %v", kind, err)
	}
}

// TestJSON has the fields that programs read.
func TestJSON(t *testing.T) {
	r := Report{Schema: Schema, Time: time.Unix(0, 0).UTC(), Config: Config{Node: "n"}, Synced: true,
		Sync: Rounds{Number: 1, First: time.Unix(1, 0).UTC()}}
	r.Fill(Query{}, nil, objects()[1:2])
	compact := string(testkit.Must(json.Marshal(r))(t))
	const want = `{"schema":1,"time":"1970-01-01T00:00:00Z","node":"n","version":"","pid":0,"link":"","services":"",` +
		`"routing":"","synced":true,` +
		`"sync":{"first":"1970-01-01T00:00:01Z","number":1,"failed":0,"tookSeconds":0,"meanSeconds":0,"longestSeconds":0},` +
		`"nodes":{"number":0,"failed":0,"tookSeconds":0,"meanSeconds":0,"longestSeconds":0},` +
		`"kinds":[{"kind":"service","objects":1,"wanted":1,"inTables":0,"waiting":0,"wrong":1,"notes":0}],` +
		`"objects":[{"kind":"service","namespace":"shop","name":"bad","state":"wrong","entries":[{"what":"10.96.0.2:80/` +
		`tcp","inTables":false,"why":"no"}]}]}`
	testkit.Check(t, compact == want, "it is\n%s\nwant\n%s", compact, want)
}

// TestWords has a line for each entry, also of an error of several lines.
func TestWords(t *testing.T) {
	r := Report{Objects: []Object{
		{Kind: Service, Namespace: "shop", Name: "web", State: Well,
			Entries: []Entry{{What: "10.96.0.1:80/tcp", Detail: "1 backend", InTables: true}},
			Notes:   []string{"no ready endpoints"}},
		{Kind: Service, Namespace: "shop", Name: "two", State: Wrong,
			Entries: []Entry{{What: "192.0.2.9:80/tcp", Why: "shop/web already has 192.0.2.9:80"}}},
		{Kind: Node, Name: "far", State: Wrong,
			Entries: []Entry{{What: "10.1.2.0/24", Why: "there is no device mst-vxlan\nthere is no route"}}},
	}}
	var out bytes.Buffer
	testkit.Succeed(t, WriteText(&out, r, Query{Kind: Service}))
	const want = `service shop/web: ok
  10.96.0.1:80/tcp  1 backend  installed
  note: no ready endpoints
service shop/two: wrong
  192.0.2.9:80/tcp    not served: shop/web already has 192.0.2.9:80
node far: wrong
  10.1.2.0/24    not installed: there is no device mst-vxlan; there is no route
`
	have := out.String()
	testkit.Check(t, have == want, "it is\n%s\nwant\n%s", have, want)
}

// TestText replaces control characters of terminals.
func TestText(t *testing.T) {
	const evil = "a\x1b[2J\r\u202eb\nc"
	r := Report{Config: Config{Node: evil, Version: evil, Link: evil}, Sync: Rounds{Error: evil}, Objects: []Object{
		{Kind: evil, Namespace: evil, Name: evil, State: evil, Entries: []Entry{{What: evil, Detail: evil, Why: evil}},
			Why: []string{evil}, Notes: []string{evil}},
	}}
	var out bytes.Buffer
	testkit.Succeed(t, WriteText(&out, r, Query{}))
	text := out.String()
	testkit.Check(t, !strings.ContainsAny(text, "\x1b\r\u202e") && strings.Count(text, "?") >= 9, "it is %q", text)
	for d, want := range map[time.Duration]string{
		time.Second: "1 s ago", 5 * time.Minute: "5 min ago", 5 * time.Hour: "5 h ago", 100 * time.Hour: "4 days ago",
		-time.Hour: "1970-01-01T01:00:00Z",
	} {
		now := time.Unix(0, 0).UTC()
		have := ago(now.Add(-d), now)
		testkit.Check(t, have == want, "%v is %q, want %q", d, have, want)
	}
	have := fmt.Sprint(span(0.0012), ", ", span(0.0412), ", ", span(2.04))
	testkit.Check(t, have == "1.2 ms, 41 ms, 2.0 s", "%v", have)
}
