// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mustang/internal/netns"
)

// try is a request of the smoke test. from is a pod, a node or outside; want is the name of the pod that answers, or
// how its name begins.
type try struct{ what, from, to, want string }

// smoke is a smoke test that runs.
type smoke struct {
	*Cluster
	pods  map[string][]string // addresses
	tries []try
}

// Smoke starts pods on each node and tests connections in each family. Targets are pods, services, node ports and
// host ports; clients are pods, nodes and machines outside. It compares the agent's status with the results. It
// returns the number of requests with the right answer; the error names the others.
func (c *Cluster) Smoke() (int, error) {
	if err := c.startPods(); err != nil {
		return 0, err
	}
	s := smoke{Cluster: c, pods: map[string][]string{}}
	if err := s.plan(); err != nil {
		return 0, err
	}
	var errs []error
	for _, t := range s.tries {
		// Services take a moment to be written, and have several backends.
		if err := c.await(10*time.Second, func() error { return s.do(t) }); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s to %s: %w", t.what, t.from, t.to, err))
		}
	}
	passed := len(s.tries) - len(errs)
	if err := s.status(); err != nil {
		errs = append(errs, fmt.Errorf("agent status: %w", err))
	}
	_, err := c.kubectl(nil, "delete", "namespace", "smoke", "--timeout=120s")
	return passed, errors.Join(append(errs, err)...)
}

// startPods starts pods on each node, with Services.
func (c *Cluster) startPods() error {
	image, err := c.Programs.Agnhost(c.ctx)
	if err != nil {
		return err
	}
	var nodes []string
	for _, n := range c.nodes {
		nodes = append(nodes, n.name)
	}
	objects, err := render("smoke.yaml", map[string]any{"Image": image, "Nodes": nodes})
	if err == nil { // pods are refused until the namespace has its account
		err = c.await(time.Minute, func() error { return c.apply(objects) })
	}
	if err == nil {
		_, err = c.kubectl(nil, "-n", "smoke", "wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s")
	}
	return err
}

// plan lists the requests.
func (s *smoke) plan() error {
	list, err := s.kubectl(nil, "-n", "smoke", "get", "pod", "-o",
		`jsonpath={range .items[*]}{.metadata.name}{range .status.podIPs[*]} {.ip}{end}{"\n"}{end}`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		s.pods[fields[0]] = fields[1:]
	}
	clusterIPs, err := s.kubectl(nil, "-n", "smoke", "get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}")
	if err != nil {
		return err
	}
	balanced, err := s.balanced()
	if err != nil {
		return err
	}
	add := func(what, to, want string, from ...string) {
		for _, f := range from {
			s.tries = append(s.tries, try{what, f, to, want})
		}
	}
	for _, ip := range balanced {
		add("load balancer", net.JoinHostPort(ip, "80"), "web-", "outside")
	}
	for _, n := range s.nodes {
		web, client, host := "web-"+n.name, "client-"+n.name, "host-"+n.name
		for _, ip := range balanced {
			add("load balancer", net.JoinHostPort(ip, "80"), "web-", client, host, n.name)
		}
		for _, ip := range s.pods[web] {
			for _, m := range s.nodes {
				add("pod", net.JoinHostPort(ip, "8080"), web, "client-"+m.name, m.name, "host-"+m.name)
			}
			add("pod", net.JoinHostPort(ip, "8080"), web, "outside")
		}
		for _, ip := range n.addrs {
			add("node", net.JoinHostPort(ip, "8090"), n.name, client, "outside")
			add("host port", net.JoinHostPort(ip, "30100"), web, client, web, n.name, "outside")
			add("node port", net.JoinHostPort(ip, "30080"), "web-", client, web, n.name, "outside")
			add("node port, local", net.JoinHostPort(ip, "30081"), web, "outside")
			add("node port, local", net.JoinHostPort(ip, "30081"), "web-", client, web, n.name)
		}
		for ip := range strings.FieldsSeq(clusterIPs) {
			add("cluster IP", net.JoinHostPort(ip, "80"), "web-", client, host, n.name)
			add("hairpin", net.JoinHostPort(ip, "80"), web, web)
		}
		if s.Family != "ipv6" {
			add("localhost", "127.0.0.1:30080", "web-", n.name)
		}
	}
	return nil
}

// do sends a request once.
func (s *smoke) do(t try) error {
	ns, via := s.outside, ""
	for _, n := range s.nodes {
		if strings.HasSuffix(t.from, n.name) {
			ns = n.ns
		}
	}
	target := "http://" + t.to + "/hostname"
	if addrs := s.pods[t.from]; len(addrs) > 0 { // the pod, at its node's request
		host, port, err := net.SplitHostPort(t.to)
		if err != nil {
			return err
		}
		via = "8080"
		if strings.HasPrefix(t.from, "host-") {
			via = "8090"
		}
		query := url.Values{"host": {host}, "port": {port}, "request": {"hostname"}, "protocol": {"http"}, "tries": {"1"}}
		target = "http://" + net.JoinHostPort(addrs[0], via) + "/dial?" + query.Encode()
	}
	got, err := get(s.ctx, ns, target)
	if err != nil {
		return err
	}
	if via != "" {
		var answer struct{ Responses, Errors []string }
		if err := json.Unmarshal([]byte(got), &answer); err != nil {
			return fmt.Errorf("%w: %s", err, got)
		}
		if len(answer.Responses) == 0 {
			return fmt.Errorf("no answer: %q", answer.Errors)
		}
		got = answer.Responses[0]
	}
	if got = strings.ToLower(got); got != t.want && (!strings.HasSuffix(t.want, "-") || !strings.HasPrefix(got, t.want)) {
		return fmt.Errorf("%q answers, not %s", got, t.want)
	}
	return nil
}

// get requests a URL from inside a namespace, over its own connection.
func get(ctx context.Context, ns *netns.Namespace, target string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network,
		addr string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
