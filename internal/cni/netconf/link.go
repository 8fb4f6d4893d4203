// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/podlink"
	"mustang/internal/policy"
)

// Links returns the values of key link: LinkAuto, and each link mode that needs no process to carry packets.
func Links() []string {
	return append([]string{LinkAuto}, linksWith(func(podlink.Traits) bool { return true })...)
}

func linksWith(accept func(podlink.Traits) bool) (names []string) {
	for _, mode := range podlink.Modes() {
		if t := mode.Traits(); t.Needs != podlink.NeedsRelay && accept(t) {
			names = append(names, mode.Name())
		}
	}
	return names
}

// traits returns the traits of the link mode. With [LinkAuto] they are zero.
func (c Config) traits() podlink.Traits {
	if mode, err := podlink.Lookup(c.Link); err == nil {
		return mode.Traits()
	}
	return podlink.Traits{}
}

// AutoLinks returns the link modes that [LinkAuto] chooses from, in the order of preference.
func AutoLinks() (names []string) {
	for _, mode := range autoModes() {
		names = append(names, mode.Name())
	}
	return names
}

// CheckProxied returns an error if services are off for pods of a link mode in which those of a node reach each other
// past the host: rules of the host, such as kube-proxy's, translate what goes to a cluster IP, and never see the
// answer. A bridge shows it to them with bridge-nf-call-iptables.
func CheckProxied(link, services string) error {
	past := linksWith(func(t podlink.Traits) bool { return !t.Routed && !t.NetfilterCall })
	if services != ServicesOff || !slices.Contains(past, link) {
		return nil
	}
	return fmt.Errorf("link %s with services off: pods of a node answer each other past the host, so cluster IPs of "+
		"kube-proxy fail between them", link)
}

// Together reports whether pods of a network reach each other if they have these two link modes: they are the same, or
// the host routes for both.
func Together(a, b string) bool {
	routed := append([]string{LinkAuto}, linksWith(func(t podlink.Traits) bool { return t.Routed })...)
	return a == b || slices.Contains(routed, a) && slices.Contains(routed, b)
}

func autoModes() []podlink.Mode {
	modes := slices.DeleteFunc(podlink.Modes(), func(m podlink.Mode) bool { return m.Traits().AutoRank == 0 })
	slices.SortFunc(modes, func(a, b podlink.Mode) int { return cmp.Compare(a.Traits().AutoRank, b.Traits().AutoRank) })
	return modes
}

// SelectLink returns the first of [AutoLinks] that the running kernel supports. It
// creates devices in temporary network namespaces, which requires root.
func SelectLink() (string, error) {
	var errs []error
	for _, mode := range autoModes() {
		err := mode.Probe()
		if err == nil {
			return mode.Name(), nil
		}
		if unsupported := (*podlink.UnsupportedError)(nil); !errors.As(err, &unsupported) {
			return "", fmt.Errorf("link auto: %w", err) // the other modes would fail alike
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("link auto: %w", errors.Join(errs...))
}

// Values of key policies: which pods are endpoints, so that network policies hold for them, even if services do not
// need it.
const (
	policiesAuto = "auto" // those that have a namespace or labels
	policiesOn   = "on"
	policiesOff  = "off"

	// PoliciesAgent is as auto, and ADD waits for the agent of the node: until the policies hold that the cluster has for
	// the pod.
	PoliciesAgent = "agent"
)

// Keys of CNI_ARGS. Those of Kubernetes come from its runtimes, LABELS from who has no Kubernetes.
const (
	argNamespace = "K8S_POD_NAMESPACE"
	argPod       = "K8S_POD_NAME"
	argUID       = "K8S_POD_UID"
	argLabels    = "LABELS"
)

// defaultNamespace is that of pods without one.
const defaultNamespace = "default"

// maxLabels bounds the labels of a pod.
const maxLabels = 64

// PodInfo is what the configuration lets network policies know of pods.
type PodInfo struct {
	// Namespace and Labels are those of all pods of the network, unless CNI_ARGS or args of the attachment say otherwise.
	Namespace string
	Labels    map[string]string

	policies string
	args     map[string]string // labels of the attachment
}

// readPod reads the keys about pods.
func (o *object) readPod() PodInfo {
	p := PodInfo{policies: policiesAuto}
	o.read("policies", "a string", &p.policies)
	o.read("namespace", "a string", &p.Namespace)
	o.read("labels", "an object of strings", &p.Labels)
	readWith(o, "args", &p.args, parseArgs)
	return p
}

// parseArgs reads the labels of an attachment as the conventions of CNI have them. Other arguments may be anything.
func parseArgs(raw json.RawMessage) (map[string]string, error) {
	var args, cni map[string]json.RawMessage
	var list []struct{ Key, Value string }
	labels := map[string]string{}
	if json.Unmarshal(raw, &args) != nil || json.Unmarshal(args["cni"], &cni) != nil || cni["labels"] == nil {
		return labels, nil
	}
	if err := json.Unmarshal(cni["labels"], &list); err != nil {
		return nil, Invalidf("args.cni.labels: want an array of objects with key and value, got %s", excerpt(cni["labels"]))
	}
	if len(list) > maxLabels {
		return nil, Invalidf("args.cni.labels: %d of them, at most %d", len(list), maxLabels)
	}
	for _, l := range list {
		labels[l.Key] = l.Value
	}
	return labels, checkLabels("args.cni.labels", labels)
}

// validate checks what pods are called. A pod whose programs do not enforce policies must not look as if they did.
func (p PodInfo) validate(services string) error {
	said := p.Namespace != "" || len(p.Labels) > 0
	switch {
	case p.policies == policiesOff && said:
		return Invalidf("policies: with off, no policy selects a pod by namespace or labels")
	case (said || p.policies == policiesOn || p.policies == PoliciesAgent) && services == ServicesOff:
		return Invalidf("services: with off, pods lack the programs that enforce policies, which policies, namespace or " +
			"labels need")
	case len(p.Labels) > maxLabels:
		return Invalidf("labels: %d of them, at most %d", len(p.Labels), maxLabels)
	}
	if err := (&policy.Pod{Namespace: cmp.Or(p.Namespace, defaultNamespace)}).Validate(); err != nil {
		return Invalidf("%v", err)
	}
	return checkLabels("labels", p.Labels)
}

// Pod returns what network policies may know of a pod with these CNI_ARGS; nil if it need not be an endpoint for them.
// What is said of the pod counts more than what is said of all pods of the network.
func (c Config) Pod(args string) (*policy.Pod, error) {
	pod := policy.Pod{Namespace: c.PodInfo.Namespace, Labels: maps.Clone(c.PodInfo.Labels)}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	maps.Copy(pod.Labels, c.PodInfo.args)
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		var err error
		switch key {
		case argNamespace:
			pod.Namespace = value
			err = (&policy.Pod{Namespace: value}).Validate()
		case argPod:
			pod.Name = value
		case argLabels:
			err = addLabels(pod.Labels, value)
		}
		if err != nil {
			return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_ARGS: %s: %v", key, err), "")
		}
	}
	p, said := c.PodInfo.policies, pod.Namespace != "" || len(pod.Labels) > 0
	switch asked := p == policiesOn || p != policiesOff && said; {
	case c.TranslatesPackets() && !said:
		return nil, nil // an endpoint anyway
	case c.TranslatesPackets() || asked && c.Services != ServicesOff:
		pod.Namespace = cmp.Or(pod.Namespace, defaultNamespace)
		return &pod, nil
	case len(pod.Labels) > 0:
		return nil, Invalidf("policies: with policies or services off, no policy selects the pod, which has labels")
	}
	return nil, nil
}

// AwaitsAgent reports whether ADD waits for the agent of the node: [PoliciesAgent].
func (c Config) AwaitsAgent() bool { return c.PodInfo.policies == PoliciesAgent }

// KubernetesPod returns which Pod of Kubernetes CNI_ARGS name; what they do not name is empty.
func KubernetesPod(args string) (namespace, name, uid string) {
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case argNamespace:
			namespace = value
		case argPod:
			name = value
		case argUID:
			uid = value
		}
	}
	return namespace, name, uid
}

// addLabels adds labels in the form app:web,tier:db. Other plugins refuse CNI_ARGS with a second "=" in a pair; it is
// taken, too.
func addLabels(labels map[string]string, text string) error {
	more := map[string]string{}
	for label := range strings.SplitSeq(text, ",") {
		i := strings.IndexAny(label, ":=")
		if i < 0 {
			return fmt.Errorf("want labels such as app:web,tier:db, got %q", label)
		}
		more[label[:i]] = label[i+1:]
	}
	if len(labels)+len(more) > maxLabels {
		return fmt.Errorf("more than %d labels", maxLabels)
	}
	maps.Copy(labels, more)
	return checkLabels(argLabels, more)
}

// checkLabels returns an error if Kubernetes cannot have a label. The key is where the labels come from.
func checkLabels(key string, labels map[string]string) error {
	if err := (&policy.Pod{Namespace: defaultNamespace, Labels: labels}).Validate(); err != nil {
		return Invalidf("%s: %v", key, err)
	}
	return nil
}
