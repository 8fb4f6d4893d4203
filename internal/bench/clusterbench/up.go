// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Up makes the pods, and waits until they run and their cluster IPs answer. On error nothing is left.
func Up(ctx context.Context, o Options) (_ *Cluster, err error) {
	c := &Cluster{options: o, services: map[string]netip.Addr{}}
	if c.exe, err = os.Executable(); err != nil {
		return nil, err
	}
	if c.api, err = o.Access.connect(); err != nil {
		return nil, err
	}
	if c.nodes, err = c.api.chooseNodes(ctx, o.Nodes); err != nil {
		return nil, err
	}
	c.plan()
	_, err = c.api.create(ctx, namespaces, map[string]any{"Name": namespace})
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("namespace %s exists: another run uses it; if that was killed: "+
			"kubectl delete namespace %[1]s", namespace)
	}
	if err != nil {
		return nil, err
	}
	o.Note("the pods are in namespace " + namespace)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	for _, p := range c.pods {
		err := c.start(ctx, p)
		if p.lab && err != nil && ctx.Err() == nil {
			c.labless = err.Error()
			continue
		}
		if err != nil {
			return nil, err
		}
		if p.server && !p.host {
			if c.services[p.name], err = c.serve(ctx, p); err != nil {
				return nil, err
			}
		}
	}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	return c, c.describe(ctx)
}

func (c *Cluster) plan() {
	port := uint16(firstHostPort + rand.IntN(hostsPorts))
	add := func(name string, n corev1.Node, server bool) {
		c.pods = append(c.pods, &pod{name: name, node: n.Name, server: server, port: plainPort},
			&pod{name: onHost + name, node: n.Name, server: server, host: true, port: port})
	}
	add(client, c.nodes[0], false)
	add(sameServer, c.nodes[0], true)
	if len(c.nodes) > 1 {
		add(twoServer, c.nodes[1], true)
	}
	if c.options.LabAfter > 0 {
		c.pods = append(c.pods, &pod{name: labs, node: c.nodes[0].Name, lab: true})
	}
}

// podsTime is how long pods may take until they run. After quietTime the run prints what they wait for.
const (
	podsTime  = 3 * time.Minute
	quietTime = 5 * time.Second
)

// await waits until all pods run and their cluster IPs answer to the client's pod, and notes the pods' addresses.
func (c *Cluster) await(ctx context.Context) error {
	begun, noted, waiting := time.Now(), "", ""
	err := wait.PollUntilContextTimeout(ctx, poll, podsTime, true, func(ctx context.Context) (bool, error) {
		all, err := list[corev1.Pod](ctx, c.api.own(pods), managedBy+"="+namespace)
		if err != nil {
			return false, err
		}
		if waiting, err = c.look(all); err != nil || waiting == "" {
			return err == nil, err
		}
		if waiting != noted && time.Since(begun) > quietTime {
			noted = waiting
			c.options.Note("waiting: " + waiting)
		}
		return false, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("not ready after %v: %s%s", podsTime, waiting, c.warnings(""))
	}
	if err != nil {
		return err
	}
	command := []string{"reach"}
	for _, p := range c.pods {
		if addr, ok := c.services[p.name]; ok {
			command = append(command, netip.AddrPortFrom(addr, probePort).String())
		}
	}
	_, err = c.run(ctx, client, command...)
	return err
}

// look returns what the first pod that does not run waits for, or "" if all run. An error is final.
func (c *Cluster) look(all []corev1.Pod) (waiting string, err error) {
	for _, p := range c.pods {
		if p.host && c.hostless != "" || p.lab && c.labless != "" {
			continue
		}
		i := slices.IndexFunc(all, func(o corev1.Pod) bool { return o.Labels[named] == p.name })
		if i < 0 {
			switch refused := c.warnings(p.name); {
			case p.host && refused != "":
				c.hostless = fmt.Sprintf("the cluster takes no pods with the network of a node%s", refused)
				continue
			case p.lab && refused != "":
				c.labless = fmt.Sprintf("the cluster takes no privileged pods%s", refused)
				continue
			}
			waiting = cmp.Or(waiting, fmt.Sprintf("pod %s is not made%s", p.name, c.warnings(p.name)))
			continue
		}
		if reason, final := unready(all[i]); reason != "" {
			reason = fmt.Sprintf("pod %s on node %s: %s", p.name, p.node, reason)
			if final {
				return "", errors.New(reason)
			}
			waiting = cmp.Or(waiting, reason)
			continue
		}
		p.id = all[i].Name
		if err := c.addresses(p, all[i].Status.PodIPs); err != nil {
			return "", err
		}
	}
	return waiting, nil
}

func (c *Cluster) addresses(p *pod, all []corev1.PodIP) error {
	p.addresses = nil
	for _, ip := range all {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && addr.Is6() == c.options.IPv6 {
			p.addresses = append(p.addresses, addr)
		}
	}
	if len(p.addresses) == 0 {
		return fmt.Errorf("pod %s lacks an IPv%d address", p.name, map[bool]int{false: 4, true: 6}[c.options.IPv6])
	}
	return nil
}

// finals are reasons for which a container waits that do not pass by themselves.
var finals = []string{"ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError",
	"CreateContainerError", "RunContainerError"}

// unready returns why a pod does not run, "" if it does, and whether that is final.
func unready(p corev1.Pod) (reason string, final bool) {
	for _, s := range p.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil && w.Reason != "" {
			reason := strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
			if strings.Contains(w.Reason, "Image") {
				reason += "; make image writes the image: load it on each node, or push it and name it by --image"
			}
			return reason, slices.Contains(finals, w.Reason)
		}
		if t := s.State.Terminated; t != nil {
			return fmt.Sprintf("ended with exit code %d: %s", t.ExitCode, cmp.Or(t.Message, t.Reason)), true
		}
	}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return cmp.Or(p.Status.Message, p.Status.Reason, "ended"), true
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "not scheduled: " + condition.Message, false
		}
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && len(p.Status.PodIPs) > 0 {
			return "", false
		}
	}
	return cmp.Or(string(p.Status.Phase), "Pending"), false
}

// warnings returns the last warning on a Job, or with an empty name on any object, after a semicolon; or "".
func (c *Cluster) warnings(job string) string {
	all, _ := list[corev1.Event](context.Background(), c.api.own(events), "")
	last := ""
	for _, e := range all {
		if e.Type == corev1.EventTypeWarning && (job == "" || e.InvolvedObject.Kind == "Job" &&
			e.InvolvedObject.Name == job) {
			last = fmt.Sprintf("; %s %s: %s: %s", strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name,
				e.Reason, e.Message)
		}
	}
	return last
}
