// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"mustang/internal/kube"
	"mustang/internal/kube/kubetest"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

func quiet() *warnings { return newWarnings(slog.New(slog.DiscardHandler)) }

// TestFloodOfWarnings has a Service changed all the time, with other addresses that are not served each time: its
// namespace has a line and an event for each change up to its limit, and other namespaces have theirs.
func TestFloodOfWarnings(t *testing.T) {
	s := newServiceSet("here")
	s.setTaken(manifest.Taken{Pods: map[netip.Prefix]string{netip.MustParsePrefix("10.199.0.0/16"): "far"}})
	var text strings.Builder
	w := newWarnings(slog.New(slog.NewTextHandler(&text, nil)))
	put := func(namespace, name, object string) {
		t.Helper()
		if err := s.on(kube.Event{Kind: kube.Services, Namespace: namespace, Name: name, Object: []byte(object)}); err != nil {
			t.Fatal(err)
		}
		collect(s, w)
	}
	for i := range 200 {
		var ips []string
		for j := range 50 {
			ips = append(ips, fmt.Sprintf("%q", fmt.Sprintf("10.199.%d.%d", i, j)))
		}
		put("shop", "flood", serviceAt("flood", "10.96.0.1", `, "externalIPs": [`+strings.Join(ips, ",")+`]`))
	}
	if n := strings.Count(text.String(), "\n"); n != warningsBurst || len(w.waiting) != n {
		t.Errorf("there are %d lines and %d events, want %d", n, len(w.waiting), warningsBurst)
	}
	for range len(w.waiting) {
		v := <-w.waiting
		if len(v.Text) > maxText || strings.Count(v.Text, "is within the pods' range") < 5 || strings.Count(v.Text, "shop/flood") != 1 {
			t.Fatalf("it says %q", v.Text)
		}
	}
	put("other", "web", strings.Replace(serviceAt("web", "10.96.0.2", `, "externalIPs": ["10.199.0.1"]`), "shop", "other", 1))
	if len(w.waiting) != 1 {
		t.Errorf("of another namespace there are %d events", len(w.waiting))
	}
	if len(s.told[manifest.Name{Namespace: "shop", Name: "flood"}].notServed) != 50 {
		t.Error("the status has not all that is not served")
	}
}

// TestFloodOfNotes has a Service that is missing in the log once its namespace has too many lines.
func TestFloodOfNotes(t *testing.T) {
	s := newServiceSet("here")
	var text strings.Builder
	w := newWarnings(slog.New(slog.NewTextHandler(&text, nil)))
	for i := range 200 {
		ip := []string{"", "10.96.0.1"}[i%2]
		if err := s.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "web", Object: []byte(serviceAt("web", ip, ""))}); err != nil {
			t.Fatal(err)
		}
		collect(s, w)
	}
	if n := strings.Count(text.String(), "\n"); n != warningsBurst {
		t.Errorf("there are %d lines, want %d", n, warningsBurst)
	}
}

// TestWarningsOfNamespace has a namespace of many objects: it does not fill the queue.
func TestWarningsOfNamespace(t *testing.T) {
	w := quiet()
	for i := range 2 * maxWaiting {
		w.add(kube.Warning{Kind: kube.Services, Namespace: "evil", Name: fmt.Sprint("web-", i), Reason: "NotServed", Text: "no"})
	}
	if len(w.waiting) != warningsBurst {
		t.Errorf("%d events wait, want %d", len(w.waiting), warningsBurst)
	}
	w.add(kube.Warning{Kind: kube.Services, Namespace: "shop", Name: "web", Reason: "NotServed", Text: "no"})
	if len(w.waiting) != warningsBurst+1 {
		t.Error("there is no room for another namespace")
	}
}

// TestWarningWithoutRoom says again what the queue had no room for, and once what it had.
func TestWarningWithoutRoom(t *testing.T) {
	w := quiet()
	for i := range maxWaiting {
		w.add(kube.Warning{Kind: kube.Namespaces, Namespace: fmt.Sprint("n", i), Name: "web", Text: "no"})
	}
	v := kube.Warning{Kind: kube.Services, Namespace: "shop", Name: "web", Text: "no"}
	w.add(v)
	<-w.waiting
	w.add(v)
	w.add(v)
	<-w.waiting
	w.add(v)
	if len(w.waiting) != maxWaiting-1 {
		t.Errorf("%d events wait, want %d", len(w.waiting), maxWaiting-1)
	}
}

// TestEventsOfNodes has two nodes say of Services what holds everywhere, and what each has of its own: the first is one
// event of no node.
func TestEventsOfNodes(t *testing.T) {
	s := kubetest.Start(t)
	client, err := kube.Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", "busy"} {
		s.Put(t, services, serviceAt(name, "10.96.0.1", ""))
	}
	for _, node := range []string{"n1", "n2"} {
		w := quiet()
		set := newServiceSet(node)
		object := []byte(serviceAt("web", "10.96.0.1", `, "externalIPs": ["127.0.0.1"]`))
		if err := set.on(kube.Event{Kind: kube.Services, Namespace: "shop", Name: "web", Object: object}); err != nil {
			t.Fatal(err)
		}
		collect(set, w)
		w.notServed(map[manifest.Name][]string{{Namespace: "shop", Name: "busy"}: {"port 1 is in use"}}, false)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.post(ctx, client, node)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		all := s.Objects(t, "/api/v1/events")
		for want, n := range map[string]int{
			`"involvedObject"`: 3, "127.0.0.1 is a loopback address": 1, `"source":{"component":"mustang-agent"}`: 1,
			`"message":"node n1: port 1 is in use"`: 1, `"host":"n1"`: 1, `"message":"node n2: port 1 is in use"`: 1, `"host":"n2"`: 1,
		} {
			if strings.Count(all, want) != n {
				return fmt.Errorf("%s is not there %d times in %s", want, n, all)
			}
		}
		return nil
	})
}
