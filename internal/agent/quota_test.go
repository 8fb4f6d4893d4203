// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mustang/internal/agent/status"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

// collected returns the failures after services were written to a table with a limit of rows.
func collected(t *testing.T, rows *table, all bool, services ...[2]string) failures {
	t.Helper()
	s := newSet("here")
	for _, v := range services {
		testkit.Succeed(t, s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: v[0], Object: []byte(v[1])}))
	}
	s.all = all
	changes, _ := collect(s, quiet())
	if !all {
		return s.write(t.Context(), rows, changes)
	}
	want, _ := s.programmed()
	return testkit.Must(s.writeAll(t.Context(), rows, want))(t)
}

func collect(s *serviceSet, w *warnings) (changes, failures) {
	of, _ := s.take()
	resolve(of)
	return s.merge(of, w)
}

func created(object, at string) string {
	return strings.Replace(object, `"metadata": {`, fmt.Sprintf(`"metadata": {"creationTimestamp": %q, `, at), 1)
}

func (s *serviceSet) put(t *testing.T, name, object string) {
	t.Helper()
	e := kube.Event{Kind: kube.Services, Namespace: "shop", Name: name}
	if object != "" {
		e.Object = []byte(object)
	}
	testkit.Succeed(t, s.on(e))
	collect(s, quiet())
}

// TestWhoHasFrontend has two Services with one frontend, in either order. A cluster IP wins over a load balancer's
// address, which wins over an external address; of two alike the older wins.
func TestWhoHasFrontend(t *testing.T) {
	const old, young, youngest = "2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
	external := serviceAt("aaa", "10.96.0.9", `, "externalIPs": ["203.0.113.1"]`)
	for name, c := range map[string]struct{ first, other, address string }{
		"load balancer": {created(serviceAt("web", "10.96.0.1",
			`, "type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}`), young),
			created(external, old), "203.0.113.1:80"},
		"cluster IP": {created(serviceAt("web", "10.96.0.1", ""), young),
			created(serviceAt("aaa", "10.96.0.9", `, "externalIPs": ["10.96.0.1"]`), old), "10.96.0.1:80"},
		"older": {created(serviceAt("web", "10.96.0.1", `, "externalIPs": ["203.0.113.1"]`), old), created(external, young),
			"203.0.113.1:80"},
	} {
		key := service.Key{Frontend: netip.MustParseAddrPort(c.address), Protocol: service.TCP}
		for _, order := range [][2][2]string{{{"web", c.first}, {"aaa", c.other}}, {{"aaa", c.other}, {"web", c.first}}} {
			s := newSet("here")
			for _, v := range order {
				s.put(t, v[0], v[1])
			}
			holder := s.holder(key)
			testkit.Check(t, holder.Name == "web", "%s: %v has %s", name, holder, key)
			if s.put(t, "web", created(serviceAt("web", "10.96.0.1", `, "externalIPs": ["203.0.113.1"]`),
				youngest)); name == "older" && s.holder(key).Name != "aaa" {
				t.Errorf("%s: the Service was made anew, and %v has %s", name, s.holder(key), key)
			}
		}
	}
}

// TestClusterIPAtOtherPorts keeps an external IP from ports of another Service's cluster IP that this has not,
// whichever came first, until that goes.
func TestClusterIPAtOtherPorts(t *testing.T) {
	thief := strings.Replace(serviceAt("aaa", "10.96.0.9", `, "externalIPs": ["10.96.0.1"]`), `"port": 80`,
		`"port": 8080`, 1)
	s := newSet("here")
	for i, step := range []struct {
		name, object string
		want         int
	}{
		{"aaa", thief, 2}, {"web", serviceAt("web", "10.96.0.1", ""), 2}, {"aaa", thief, 2},
		{"web", serviceAt("web", "10.96.0.2", ""), 3},
		{"web", serviceAt("web", "10.96.0.1", ""), 2}, {"web", "", 2},
	} {
		s.put(t, step.name, step.object)
		all := s.services()
		testkit.Check(t, len(all) == step.want, "step %d: there are %v, want %d", i, all, step.want)
	}
}

// TestFullTable has more services than a map has rows: older Services come first, and a cluster IP before external
// addresses. All others are reported to lack rows.
func TestFullTable(t *testing.T) {
	var ips []string
	for i := range 50 {
		ips = append(ips, fmt.Sprintf("%q", fmt.Sprintf("198.51.0.%d", i+1)))
	}
	big := serviceAt("big", "203.0.113.1", `, "externalIPs": [`+strings.Join(ips, ",")+`]`)
	of := [][2]string{{"big", created(big, "2026-01-01T00:00:00Z")}}
	for i := range 50 {
		name := fmt.Sprint("web-", i)
		of = append(of, [2]string{name, serviceAt(name, fmt.Sprint("10.96.1.", i), "")})
	}
	for _, all := range []bool{false, true} {
		rows := &table{rows: map[service.Key]service.Service{}, rowRoom: 60}
		failed := collected(t, rows, all, of...)
		have := rows.String()
		testkit.Check(t, len(rows.rows) == 60 && strings.Count(have, "10.96.1.") == 50 &&
			strings.Contains(have, "203.0.113.1:80") && len(failed) == 101-60,
			"all %v: %d rows, %d failed: %s", all, len(rows.rows), len(failed), have)
		for key, err := range failed {
			none := new(objects.FullError)
			testkit.Check(t, errors.As(err, &none), "%s: %v", key, err)
		}
	}
}

func nameOf(text string) manifest.Name {
	namespace, name, _ := strings.Cut(text, "/")
	return manifest.Name{Namespace: namespace, Name: name}
}

// TestQuotaOfNamespace fills small maps of a datapath from one namespace, of whose rows it has an eighth. Its oldest
// Services are programmed, as many as fit, and the others follow once there are rows for them. One larger than the
// quota keeps none of the others out. Another namespace has its own rows.
func TestQuotaOfNamespace(t *testing.T) {
	testkit.RequireRoot(t)
	sizes := objects.Sizes{Services: 4096, Backends: 8192, SourceRanges: 2048} // a namespace has 512, 1,024, 256
	d := testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: filepath.Join(testkit.BPFFS(t), "mustang"),
		Sizes: sizes}))(t)
	t.Cleanup(func() { _ = d.Close() })
	size := testkit.Must(d.Services().Room())(t)
	s := newServiceSet("here", size, 8)
	at := map[string]byte{}
	for _, step := range []struct {
		what, name                  string
		frontends, backends, ranges int
		programmed, why             string
	}{
		{"within the quota", "shop/b", 2, 200, 0, "shop/b", ""},
		{"the whole quota", "shop/c", 3, 208, 0, "shop/b shop/c", ""},
		{"one row more", "shop/d", 1, 1, 0, "shop/b shop/c", "namespace shop: 1,025 of 1,024 backend rows"},
		{"another namespace", "bank/web", 2, 400, 0, "bank/web shop/b shop/c", ""},
		{"a Service larger than the quota comes first", "shop/a", 1, 1025, 0, "bank/web shop/b shop/c",
			"namespace shop: 1,025 of 1,024 backend rows"},
		{"it goes", "shop/a", 0, 0, 0, "bank/web shop/b shop/c", ""},
		{"an older one grows", "shop/b", 2, 201, 0, "bank/web shop/b", ""},
		{"and shrinks", "shop/b", 2, 199, 0, "bank/web shop/b shop/c shop/d", ""},
		{"more frontends than the quota", "many/x", 513, 0, 0, "bank/web shop/b shop/c shop/d",
			"namespace many: 513 of 512 frontend rows"},
		{"more source ranges", "many/y", 1, 1, 257, "bank/web shop/b shop/c shop/d",
			"namespace many: 257 of 256 source range rows"},
		{"fewer", "many/y", 1, 1, 256, "bank/web many/y shop/b shop/c shop/d", ""},
	} {
		n := nameOf(step.name)
		if at[step.name] == 0 {
			at[step.name] = byte(len(at) + 1)
		}
		var set manifest.Set
		for i := range step.frontends {
			v := service.Service{Frontend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, at[step.name], byte(i >> 8)}),
				uint16(i%256+1)), Protocol: service.TCP}
			for k := range step.backends {
				v.Backends = append(v.Backends,
					service.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(k >> 8), byte(k)}), 80)})
			}
			for k := range step.ranges {
				v.SourceRanges = append(v.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 1, byte(k >> 8), byte(k)}),
					32))
			}
			set.Services = append(set.Services, v)
		}
		c, refused := s.merge([]resolved{{name: n, record: newRecord("", set)}}, quiet())
		failed := s.write(t.Context(), d.Services(), c)
		testkit.Require(t, len(failed) == 0, "%s: %v", step.what, failed)
		for key, err := range refused {
			why := (*policy.LimitError)(nil)
			testkit.Check(t, s.holder(key) != n || errors.As(err, &why) && isRefused(err) && err.Error() == step.why,
				"%s: %v, want %q", step.what, err, step.why)
		}
		got := s.refusal(n) != nil
		testkit.Check(t, got == (step.why != ""), "%s: refused %t", step.what, got)
		all := testkit.Must(d.Services().List(t.Context()))(t)
		names := map[string]int{}
		for _, v := range all {
			of := s.holder(v.Key())
			if want := s.record(of).get(v.Key()); len(want.Backends) != len(v.Backends) {
				t.Errorf("%s: %s has %d backends, want %d", step.what, of, len(v.Backends), len(want.Backends))
			}
			names[of.String()]++
		}
		have := strings.Join(slices.Sorted(maps.Keys(names)), " ")
		testkit.Check(t, have == step.programmed, "%s: programmed are %q, want %q", step.what, have, step.programmed)
		if services, _ := s.programmed(); len(services) != len(all) {
			t.Errorf("%s: %d services are to be there, and %d are", step.what, len(services), len(all))
		}
	}
	lines := fmt.Sprint(s.overQuota())
	testkit.Check(t, lines == "[namespace many: 514 of 512 frontend rows; not programmed: many/x]",
		"the status says %s", lines)
}

// TestQuotaAfterRestart has Services arrive in another order: the same ones are programmed.
func TestQuotaAfterRestart(t *testing.T) {
	var names []manifest.Name
	for i := range 100 {
		names = append(names, nameOf(fmt.Sprintf("shop/%02d", i)))
	}
	var want []manifest.Name
	for range 20 {
		s := newServiceSet("here", rows.Counts{Backends: 8000}, 8)
		var of []resolved
		for _, i := range rand.Perm(len(names)) {
			of = append(of, resolved{name: names[i], record: newRecord("", manifest.Set{Services: []service.Service{{
				Frontend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80), Protocol: service.TCP,
				Backends: make([]service.Backend, 1+i*37%50)}}})})
			if rand.N(2) == 0 {
				s.merge(of, quiet())
				of = nil
			}
		}
		s.merge(of, quiet())
		have := slices.SortedFunc(maps.Keys(s.usage["shop"].refused), manifest.Name.Compare)
		if want == nil {
			want = have
		}
		testkit.Check(t, len(have) != 0 && len(have) != len(names) && slices.Equal(have, want),
			"%v are refused, want %v", have, want)
	}
}

// TestQuotaIsTold has a Service above the quota of its namespace: one event has both numbers, and the status a line for
// the namespace. It is programmed once another Service has gone.
func TestQuotaIsTold(t *testing.T) {
	s, rowsOf := kubetest.Start(t), newTable()
	for i := range 3 {
		name := fmt.Sprint("web-", i)
		s.Put(t, services, serviceAt(name, fmt.Sprint("10.96.0.", i+1), ""))
	}
	a := start(t, s, rowsOf, func(o *Options) { o.Room, o.NamespaceQuota = rows.Counts{Services: 16}, 8 })
	rowsOf.wants(t, "two of three", "10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []")
	s.Put(t, services, serviceAt("web-3", "10.96.0.4", ""))
	testkit.Eventually(t, 30*time.Second, func() error {
		r, err := a.Report(t.Context(), status.Query{})
		if err != nil {
			return err
		}
		if !slices.Equal(r.Warnings,
			[]string{"namespace shop: 4 of 2 frontend rows; not programmed: shop/web-2, shop/web-3"}) {
			return fmt.Errorf("the status says %q", r.Warnings)
		}
		for i, o := range r.Objects {
			if want := fmt.Sprintf("namespace shop: %d of 2 frontend rows", i+3); o.Name != fmt.Sprint("web-", i+2) ||
				o.Entries[0].Why != want {
				return fmt.Errorf("the status says %+v", o)
			}
		}
		return nil
	})
	a.mu.Lock()
	a.services.all = true
	a.mu.Unlock()
	wantsEvents(t, s, map[string]int{`"message":"namespace shop: 3 of 2 frontend rows"`: 1,
		`"message":"namespace shop: 4 of 2 frontend rows"`: 1})
	s.Delete(services, "shop", "web-0")
	rowsOf.wants(t, "one has gone", "10.96.0.2:80/tcp []; 10.96.0.3:80/tcp []")
}

// TestFullMap has more Services than a map has rows: the programmed Services stay, and the node is degraded until the
// others are programmed too.
func TestFullMap(t *testing.T) {
	s := kubetest.Start(t)
	rowsOf := &table{rows: map[service.Key]service.Service{}, rowRoom: 1}
	s.Put(t, services, serviceAt("one", "10.96.0.1", ""))
	a := start(t, s, rowsOf)
	rowsOf.wants(t, "one", "10.96.0.1:80/tcp []")
	s.Put(t, services, serviceAt("two", "10.96.0.2", ""))
	tells := func(degraded bool) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			health, metrics := ask(a.State.Probes(), "/healthz").Body.String(), ask(a.State.Metrics(), "/metrics").Body.String()
			r, err := a.Report(t.Context(), status.Query{})
			if err != nil {
				return err
			}
			if strings.Contains(health, `"degraded": "services: degraded: map \"services\" is full`) != degraded ||
				(len(r.Warnings) > 0) != degraded ||
				strings.Contains(metrics, "\nmustang_agent_degraded 1\n") != degraded {
				return fmt.Errorf("/healthz says %s, and the status %q", health, r.Warnings)
			}
			return nil
		})
	}
	tells(true)
	rowsOf.wants(t, "the map is full", "10.96.0.1:80/tcp []")
	wantsEvents(t, s, map[string]int{`map \"services\" is full`: 1})
	rowsOf.set(func() { rowsOf.rowRoom = 2 })
	rowsOf.wants(t, "the map has rows again", "10.96.0.1:80/tcp []; 10.96.0.2:80/tcp []")
	tells(false)
}
