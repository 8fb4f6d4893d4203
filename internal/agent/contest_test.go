// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/kube"
	"mustang/internal/service"
)

// collected returns what Services become in a table with room for some rows, and what could not be written.
func collected(t *testing.T, rows *table, all bool, services ...[2]string) failures {
	t.Helper()
	s := newServiceSet("here")
	for _, v := range services {
		if err := s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: v[0], Object: []byte(v[1])}); err != nil {
			t.Fatal(err)
		}
	}
	s.all = all
	changes, _ := collect(s, quiet())
	if !all {
		return changes.write(t.Context(), rows, s.wanted)
	}
	want, _ := s.programmed()
	failed, err := applyAll(t.Context(), rows, want, s.wanted)
	if err != nil {
		t.Fatal(err)
	}
	return failed
}

// collect looks at Services as a round does.
func collect(s *serviceSet, w *warnings) (changes, failures) {
	of, _ := s.take()
	resolve(of)
	return s.merge(of, w)
}

// TestLoadBalancerWins though an older Service has the address as an external one.
func TestLoadBalancerWins(t *testing.T) {
	thief := [2]string{"aaa", strings.Replace(serviceAt("aaa", "10.96.0.9", `, "externalIPs": ["203.0.113.1"]`), `"metadata": {`, `"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", `, 1)}
	const given = `, "type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}`
	victim := [2]string{"web", strings.Replace(serviceAt("web", "10.96.0.1", given), `"metadata": {`, `"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", `, 1)}
	for _, order := range [][][2]string{{thief, victim}, {victim, thief}} {
		s := newServiceSet("here")
		for _, v := range order {
			if err := s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: v[0], Object: []byte(v[1])}); err != nil {
				t.Fatal(err)
			}
			collect(s, quiet())
		}
		at := service.Service{Frontend: netip.MustParseAddrPort("203.0.113.1:80"), Protocol: service.TCP}.Key()
		if holder := s.wanted.holder[at]; holder.Name != "web" {
			t.Errorf("%v has the load balancer's address", holder)
		}
	}
}

// TestClusterIPWins though an older Service, of a name that sorts before, has the address as an external one.
func TestClusterIPWins(t *testing.T) {
	thief := [2]string{"aaa", strings.Replace(serviceAt("aaa", "10.96.0.9", `, "externalIPs": ["10.96.0.1"]`), `"metadata": {`, `"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", `, 1)}
	victim := [2]string{"web", strings.Replace(serviceAt("web", "10.96.0.1", ""), `"metadata": {`, `"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", `, 1)}
	for _, order := range [][][2]string{{thief, victim}, {victim, thief}} {
		rows := &table{rows: map[service.Key]service.Service{}}
		if failed := collected(t, rows, false, order...); len(failed) > 0 || len(rows.rows) != 2 {
			t.Errorf("there are %s, failed %v", rows, failed)
		}
		for _, s := range rows.rows {
			if s.External {
				t.Errorf("%s is an external address", s)
			}
		}
	}
}

// TestClusterIPAtOtherPorts keeps an external IP from ports of another Service's cluster IP that this has not,
// whichever came first, until that goes.
func TestClusterIPAtOtherPorts(t *testing.T) {
	thief := strings.Replace(serviceAt("aaa", "10.96.0.9", `, "externalIPs": ["10.96.0.1"]`), `"port": 80`, `"port": 8080`, 1)
	s := newServiceSet("here")
	for i, step := range []struct {
		name, object string
		want         int
	}{
		{"aaa", thief, 2}, {"web", serviceAt("web", "10.96.0.1", ""), 2}, {"aaa", thief, 2}, {"web", serviceAt("web", "10.96.0.2", ""), 3},
		{"web", serviceAt("web", "10.96.0.1", ""), 2}, {"web", "", 2},
	} {
		e := kube.Event{Kind: kube.Services, Namespace: "shop", Name: step.name}
		if step.object != "" {
			e.Object = []byte(step.object)
		}
		if err := s.on(e); err != nil {
			t.Fatal(err)
		}
		collect(s, quiet())
		if all := s.wanted.services(); len(all) != step.want {
			t.Errorf("step %d: there are %v, want %d", i, all, step.want)
		}
	}
}

// TestFullTable has more services than a map has rows: older Services come first, a cluster IP before external
// addresses, and all others are known to lack rows.
func TestFullTable(t *testing.T) {
	var ips []string
	for i := range 50 {
		ips = append(ips, fmt.Sprintf("%q", fmt.Sprintf("198.51.0.%d", i+1)))
	}
	big := serviceAt("big", "203.0.113.1", `, "externalIPs": [`+strings.Join(ips, ",")+`]`)
	of := [][2]string{{"big", strings.Replace(big, `"metadata": {`, `"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", `, 1)}}
	for i := range 50 {
		name := fmt.Sprint("web-", i)
		of = append(of, [2]string{name, serviceAt(name, fmt.Sprint("10.96.1.", i), "")})
	}
	for _, all := range []bool{false, true} {
		rows := &table{rows: map[service.Key]service.Service{}, rowRoom: 60}
		failed := collected(t, rows, all, of...)
		have := rows.String()
		if len(rows.rows) != 60 || strings.Count(have, "10.96.1.") != 50 || !strings.Contains(have, "203.0.113.1:80") || len(failed) != 101-60 {
			t.Errorf("all %v: %d rows, %d failed: %s", all, len(rows.rows), len(failed), have)
		}
		for key, err := range failed {
			if none := new(objects.FullError); !errors.As(err, &none) {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
}

// TestNotesOnce has a note logged when it is new, and not when all is compared again.
func TestNotesOnce(t *testing.T) {
	s := newServiceSet("here")
	var text strings.Builder
	w := newWarnings(slog.New(slog.NewTextHandler(&text, nil)))
	for _, ip := range []string{"", "", "10.96.0.1", ""} {
		if err := s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "web", Object: []byte(serviceAt("web", ip, ""))}); err != nil {
			t.Fatal(err)
		}
		s.all = true
		collect(s, w)
	}
	if n := strings.Count(text.String(), "it has no address yet"); n != 2 {
		t.Errorf("it says %d times, want 2:\n%s", n, &text)
	}
}
