// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// answer is the output of `mustang agent status -o json`, as far as the test reads it.
type answer struct {
	Objects []struct {
		Kind, Namespace, Name, State string
		Why, Notes                   []string
		Entries                      []struct {
			What, Detail string
			InTables     bool
		}
	}
}

// told matches the last line of a status that reports a fault.
var told = regexp.MustCompile("wrong|cannot read the cluster|not all has been written")

// agent runs a command in the agent's pod of node 1. A status that reports a fault is not an error.
func (c *Cluster) agent(args ...string) (string, error) {
	pod, err := c.kubectl(nil, "-n", "kube-system", "get", "pod", "-l", "app.kubernetes.io/name=mustang",
		"--field-selector", "spec.nodeName="+c.nodes[0].name, "-o", "name")
	if err != nil {
		return "", err
	}
	out, err := c.kubectl(nil, append([]string{"-n", "kube-system", "exec", pod, "--", "mustang"}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && told.MatchString(err.Error()) {
		err = nil
	}
	return out, err
}

// ask returns the agent's status of a kind, and of each object in one line.
func (s *smoke) ask(kind string) (answer, map[string]string, error) {
	var a answer
	text, err := s.agent("agent", "status", kind, "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &a)
	}
	said := map[string]string{}
	for _, o := range a.Objects {
		line := o.State
		for _, e := range o.Entries {
			line += fmt.Sprintf(" %s in tables: %t;", e.Detail, e.InTables)
		}
		said[o.Namespace+"/"+o.Name] = line + " " + strings.Join(append(o.Why, o.Notes...), "; ")
	}
	return a, said, err
}

// expect waits until the agent's lines for some objects have the wanted beginnings and ends.
func (s *smoke) expect(kind string, want map[string][2]string) error {
	return s.await(10*time.Second, func() error {
		_, said, err := s.ask(kind)
		for name, line := range want {
			if has := said[name]; !strings.HasPrefix(has, line[0]) || !strings.HasSuffix(has, line[1]) {
				err = errors.Join(err, fmt.Errorf("status of %s: %q, want %q ... %q", name, has, line[0], line[1]))
			}
		}
		return err
	})
}

// status compares the output of `mustang agent status` with the tables, and with the clients' results.
func (s *smoke) status() error {
	// A pod's address cannot be served.
	objects, err := render("status.yaml", map[string]any{"External": s.pods["web-node1"][0]})
	if err != nil {
		return err
	}
	ranges, err := s.kubectl(nil, "get", "node", "node1", "-o", "jsonpath={.spec.podCIDRs[0]}")
	if err != nil {
		return err
	}
	if err := s.apply(objects); err != nil {
		return err
	}
	err = errors.Join(s.expect("services", map[string][2]string{
		"smoke/empty":    {"ok 0 backends in tables: true;", " no endpoints"},
		"smoke/web":      {fmt.Sprintf("ok %d backend", len(s.nodes)), "in tables: true; "},
		"smoke/headless": {"ok headless: no cluster IP to serve", ""},
		"smoke/partly": {fmt.Sprintf("wrong %d backend", len(s.nodes)), "is within the pods' range " + ranges +
			" of node node1"},
	}), s.expect("policies", map[string][2]string{"smoke/part": {"wrong 1 pod here in tables: true; it cannot be read",
		"it isolates the pods that it selects"}}))
	if err != nil {
		return err
	}
	if err := errors.Join(s.sameRows(), s.noBackends(), s.reaches(false)); err != nil {
		return err
	}
	// Once it can be read, it lets pods in.
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/ingress/0/from/0/ipBlock/cidr", "value": %q}]`,
		s.each("10.199.0.0/16", "fd00:199::/48")[0])
	if _, err := s.kubectl(nil, "-n", "smoke", "patch", "networkpolicy", "part", "--type=json", "-p", patch); err != nil {
		return err
	}
	return errors.Join(s.expect("policies", map[string][2]string{"smoke/part": {"ok 1 pod here in tables: true;", " "}}),
		s.reaches(true))
}

// sameRows compares all frontends in the agent's status with the tables.
func (s *smoke) sameRows() error {
	a, _, err := s.ask("services")
	if err != nil {
		return err
	}
	var said, there []string
	for _, o := range a.Objects {
		for _, e := range o.Entries {
			if e.InTables {
				said = append(said, e.What)
			}
		}
	}
	var rows struct {
		Services []struct {
			Owner, Protocol, Service string
			Port                     int
		}
	}
	text, err := s.agent("svc", "ls", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &rows)
	}
	if err != nil {
		return err
	}
	for _, r := range rows.Services {
		if r.Owner == "agent" {
			there = append(there, net.JoinHostPort(r.Service, fmt.Sprint(r.Port))+"/"+r.Protocol)
		}
	}
	slices.Sort(said)
	slices.Sort(there)
	if !slices.Equal(said, there) {
		return fmt.Errorf("status has the frontends %q, the tables have %q", said, there)
	}
	return nil
}

// noBackends checks that a Service without backends refuses connections, as in its row.
func (s *smoke) noBackends() error {
	ip, err := s.kubectl(nil, "-n", "smoke", "get", "service", "empty", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	err = s.do(try{from: "client-node1", to: net.JoinHostPort(ip, "80"), want: "nobody"})
	if err == nil || !strings.Contains(err.Error(), "refused") {
		return fmt.Errorf("a Service without backends: %v, want that it refuses", err)
	}
	return nil
}

// reaches sees whether the pod that a policy selects takes connections of another pod.
func (s *smoke) reaches(want bool) error {
	return s.await(10*time.Second, func() error {
		err := s.do(try{from: "client-node1", to: net.JoinHostPort(s.pods["web-node1"][0], "8080"), want: "web-node1"})
		if want != (err == nil) {
			return fmt.Errorf("pod client-node1 reaches web-node1: %v, want %t", err, want)
		}
		return nil
	})
}
