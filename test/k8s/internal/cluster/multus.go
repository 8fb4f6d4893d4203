// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// second is the test of a second network.
type second struct {
	smoke
	addresses map[string]string // of pods in the second network
}

// Multus installs Multus, whose module is below source, and gives pods of each node a second network, by Mustang's
// plugin in a link mode. It tests connections in that network, by a Service with backends in it, and under policies. It
// returns what it has counted.
func (c *Cluster) Multus(source, link string) (string, error) {
	program := c.path("multus")
	if err := c.Programs.compile(c.ctx, peerProgram(source, "multus"), program); err != nil {
		return "", err
	}
	for _, n := range c.nodes {
		if err := n.startMultus(program); err != nil {
			return "", fmt.Errorf("%s: %w", n.name, err)
		}
	}
	s := second{smoke{Cluster: c, pods: map[string][]string{}}, map[string]string{}}
	if err := s.startPods(link); err != nil {
		return "", err
	}
	if err := s.plan(); err != nil {
		return "", err
	}
	var counts []string
	for _, step := range []struct {
		policy string
		denied func(try) bool
	}{
		{"", func(try) bool { return false }},
		{fmt.Sprintf(policy, ""), func(try) bool { return true }},
		{fmt.Sprintf(policy, `{"from": [{"ipBlock": {"cidr": "10.201.0.0/24"}}]}`),
			func(t try) bool { return t.what == "first network" }},
	} {
		if step.policy != "" {
			if err := s.apply(step.policy); err != nil {
				return "", err
			}
		}
		count, err := s.all(step.denied)
		if err != nil {
			return "", err
		}
		counts = append(counts, count)
	}
	_, err := c.kubectl(nil, "delete", "namespace", "second", "--timeout=120s")
	return "without a policy " + counts[0] + "; isolated " + counts[1] + "; second network allowed " + counts[2], err
}

// policy lets only what its rule matches reach the pods with label web.
const policy = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
"metadata": {"name": "web", "namespace": "second"},
"spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [%s]}}`

// startMultus installs Multus. It takes the network that the node has for the first one of pods.
func (n *node) startMultus(program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "multus", "type": "multus",
		"kubeconfig": n.c.Kubeconfig(), "clusterNetwork": "/etc/cni/net.d/10-mustang.conflist",
		"capabilities": map[string]bool{"portMappings": true}})
	return errors.Join(err, os.WriteFile(n.path("cni-bin", "multus"), data, 0o755),
		os.WriteFile(n.path("cni-conf", "00-multus.conf"), config, 0o600))
}

// startPods starts a server and a client on each node, and a Service whose backends are servers in the second network.
func (s *second) startPods(link string) error {
	image, err := s.Programs.Agnhost(s.ctx)
	if err != nil {
		return err
	}
	var nodes []string
	for _, n := range s.nodes {
		nodes = append(nodes, n.name)
	}
	objects, err := render("multus.yaml", nil)
	if err == nil {
		err = s.apply(objects)
	}
	if err == nil {
		objects, err = render("secondary.yaml", map[string]any{"Image": image, "Nodes": nodes, "Link": link})
	}
	if err == nil {
		err = s.await(time.Minute, func() error { return s.apply(objects) })
	}
	if err == nil {
		_, err = s.kubectl(nil, "-n", "second", "wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s")
	}
	if err != nil {
		return err
	}
	list, err := s.kubectl(nil, "-n", "second", "get", "pod", "-o", `jsonpath={range .items[*]}{.metadata.name}{"\t"}`+
		`{.status.podIP}{"\t"}{.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}{"\u0000"}{end}`)
	if err != nil {
		return err
	}
	var endpoints []map[string]any
	for item := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		fields := strings.SplitN(item, "\t", 3)
		var networks []struct {
			Interface string
			IPs       []string
		}
		if err := json.Unmarshal([]byte(fields[2]), &networks); err != nil {
			return fmt.Errorf("networks of pod %s: %w: %q", fields[0], err, fields[2])
		}
		s.pods[fields[0]] = []string{fields[1]}
		for _, network := range networks {
			if network.Interface == "net1" && len(network.IPs) == 1 {
				s.addresses[fields[0]] = network.IPs[0]
			}
		}
		if strings.HasPrefix(fields[0], "web-") {
			endpoints = append(endpoints, map[string]any{"addresses": []string{s.addresses[fields[0]]}})
		}
	}
	return s.applyService(endpoints)
}

// applyService makes a Service without a selector, with backends in the second network.
func (s *second) applyService(endpoints []map[string]any) error {
	meta := map[string]any{"name": "web", "namespace": "second",
		"labels": map[string]string{"kubernetes.io/service-name": "web"}}
	for _, object := range []map[string]any{
		{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": map[string]any{
			"ports": []any{map[string]any{"port": 80, "targetPort": 8080}}}},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4",
			"ports": []any{map[string]any{"name": "", "port": 8080}}, "endpoints": endpoints},
	} {
		text, err := json.Marshal(object)
		if err == nil {
			err = s.apply(string(text))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// plan lists the requests: to the servers' addresses in the second network, in the first one, and to the Service.
func (s *second) plan() error {
	clusterIP, err := s.kubectl(nil, "-n", "second", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	for _, n := range s.nodes {
		for _, m := range s.nodes {
			web, client := "web-"+n.name, "client-"+m.name
			s.tries = append(s.tries, try{"second network", client, net.JoinHostPort(s.addresses[web], "8080"), web},
				try{"first network", client, net.JoinHostPort(s.pods[web][0], "8080"), web})
		}
		s.tries = append(s.tries, try{"cluster IP", "client-" + n.name, net.JoinHostPort(clusterIP, "80"), "web-"})
	}
	return err
}

// all makes all requests. Those that denied names must stay without an answer, the others get one.
func (s *second) all(denied func(try) bool) (counts string, err error) {
	refused := 0
	for _, t := range s.tries {
		failed := s.await(20*time.Second, func() error {
			err := s.do(t)
			switch {
			case !denied(t):
				return err
			case err == nil:
				return errors.New("answered despite the policy")
			}
			return nil
		})
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %s to %s: %w", t.what, t.from, t.to, failed))
		}
		if denied(t) {
			refused++
		}
	}
	return fmt.Sprintf("%d answered, %d denied", len(s.tries)-refused, refused), err
}

// peerProgram is a program of another network.
func peerProgram(source, network string) program {
	p := peerPrograms[network]
	p.module = filepath.Join(source, "peers", p.module)
	return p
}
