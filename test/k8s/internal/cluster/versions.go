// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mustang/internal/netns"
)

// definition is the resource definition of ClusterNetworkPolicy.
const definition = "clusternetworkpolicies.policy.networking.k8s.io"

// A pod that is denied another one knocks there so often, and waits so long for an answer.
const (
	knockEvery = 50 * time.Millisecond
	knockWait  = time.Second
)

// knock connects where a policy denies it, until ctx ends, and returns how many connections were denied, and how many
// got through.
func knock(ctx context.Context, ns *netns.Namespace, addresses []string) (denied, through int32) {
	var all sync.WaitGroup
	var counts [2]atomic.Int32
	for ctx.Err() == nil {
		for _, ip := range addresses {
			all.Go(func() {
				conn, err := connect(ns, net.JoinHostPort(ip, "8080"), knockWait)
				if err != nil {
					counts[0].Add(1)
					return
				}
				counts[1].Add(1)
				_ = conn.Close()
			})
		}
		time.Sleep(knockEvery)
	}
	all.Wait()
	return counts[0].Load(), counts[1].Load()
}

// Versions switches the versions of ClusterNetworkPolicy on and off, and restarts the agents while none is on. A pod
// connects all the time where a policy denies it: no connection succeeds. The agents read the version that is on,
// report when none is, and start no pod before one is on again. It returns its counts.
func (c *Cluster) Versions() (counted string, err error) {
	err = c.withClient(func(ctx context.Context, pod *netns.Namespace) error {
		s := &smoke{Cluster: c, pods: map[string][]string{}}
		objects, err := render("definition.yaml", nil)
		if err := errors.Join(err, s.plan(), c.apply(objects)); err != nil {
			return err
		}
		if _, err := c.kubectl(nil, "wait", "crd", definition, "--for=condition=Established", "--timeout=60s"); err != nil {
			return err
		}
		if err := c.await(time.Minute,
			func() error { return c.apply(clusterPolicy("deny", "v1alpha2", "web", "Deny")) }); err != nil {
			return err
		}
		if err := errors.Join(s.follows("deny"), s.reaches(false)); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		switched := make(chan error, 1)
		go func() {
			defer cancel()
			switched <- s.switchVersions()
		}()
		denied, through := knock(ctx, pod, s.pods["web-node1"])
		counted, err = fmt.Sprintf("%d connections denied, %d got through", denied, through), <-switched
		if through > 0 {
			err = errors.Join(err, fmt.Errorf("%d connections got through that a policy denies", through))
		}
		if err == nil {
			err = s.undefine()
		}
		return err
	})
	return counted, err
}

// switchVersions goes through the combinations of versions.
func (s *smoke) switchVersions() error {
	for _, version := range []string{"v1alpha2", "v1beta1"} {
		if err := s.serve(version == "v1beta1", version == "v1alpha2"); err != nil {
			return err
		}
		name := "only-" + version
		if err := s.await(time.Minute,
			func() error { return s.apply(clusterPolicy(name, version, "nobody", "Deny")) }); err != nil {
			return err
		}
		if err := s.follows(name); err != nil {
			return err
		}
	}
	const why = "is served neither as v1beta1 nor as v1alpha2"
	errs := []error{s.serve(false, false), s.unread(why)}
	for _, n := range s.nodes { // whatever they report: only connections count
		errs = append(errs, n.command(s.ctx, "pkill", "-KILL", "-x", "mustang").Run())
	}
	image, err := s.Programs.Agnhost(s.ctx)
	if err != nil {
		return err
	}
	late := fmt.Sprintf(
		`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late", "namespace": "smoke"}, "spec": {"nodeName": "node1",
"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": %q, "args": ["pause"]}]}}`, image)
	errs = append(errs, s.unread(why), s.apply(late), s.event("FailedCreatePodSandBox", why), s.event("NotRead", why),
		s.serve(true, true), s.unread(""))
	_, err = s.kubectl(nil, "-n", "smoke", "wait", "pod", "late", "--for=condition=Ready", "--timeout=120s")
	return errors.Join(append(errs, err)...)
}

// undefine deletes the definition, and its policies with it: connections that they deny are allowed.
func (s *smoke) undefine() error {
	if _, err := s.kubectl(nil, "delete", "crd", definition, "--timeout=60s"); err != nil {
		return err
	}
	return errors.Join(s.reaches(true), s.unread(""))
}

// serve switches versions on and off.
func (s *smoke) serve(v1beta1, v1alpha2 bool) error {
	patch := fmt.Sprintf(
		`[{"op": "replace", "path": "/spec/versions/0/served", "value": %t}, {"op": "replace", "path": `+
			`"/spec/versions/1/served", "value": %t}]`, v1beta1, v1alpha2)
	_, err := s.kubectl(nil, "patch", "crd", definition, "--type=json", "-p", patch)
	return err
}

// clusterPolicy is a policy for ingress to the pods of an app.
func clusterPolicy(name, version, app, action string) string {
	return fmt.Sprintf(`{"apiVersion": "policy.networking.k8s.io/%s", "kind": "ClusterNetworkPolicy", "metadata": `+
		`{"name": %q}, "spec": {"tier": "Admin", "priority": 1,
"subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": %q}}}}, "ingress": [{"action": %q, "from": [{"namespaces": {}}]}]}}`, version, name, app, action)
}

// follows waits until the agent has a policy in force.
func (s *smoke) follows(name string) error {
	return s.await(time.Minute, func() error {
		_, said, err := s.ask("clusternetworkpolicies")
		if has := said["/"+name]; err == nil && !strings.HasPrefix(has, "ok") {
			err = fmt.Errorf("status of ClusterNetworkPolicy %s: %q", name, has)
		}
		return err
	})
}

// unread waits until the agent reports that it cannot read the cluster, and why; empty: that it can.
func (s *smoke) unread(why string) error {
	return s.await(2*time.Minute, func() error {
		var a struct {
			Unread string
			Synced bool
		}
		text, err := s.agent("agent", "status", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(text), &a)
		}
		if err == nil && (!strings.Contains(a.Unread, why) || why == "" && (a.Unread != "" || !a.Synced)) {
			err = fmt.Errorf("the agent cannot read the cluster: %q, want %q", a.Unread, why)
		}
		return err
	})
}

// event waits for an event with a reason and a text.
func (s *smoke) event(reason, text string) error {
	return s.await(time.Minute, func() error {
		said, err := s.kubectl(nil, "get", "events", "-A", "--field-selector", "reason="+reason, "-o",
			"jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(said, text) {
			err = fmt.Errorf("events %s: %q, want %q", reason, said, text)
		}
		return err
	})
}
