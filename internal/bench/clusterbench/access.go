// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"mustang/internal/kube"
)

// ExecCommand is the hidden subcommand of mustang whose main calls [Exec].
const ExecCommand = "cluster-exec"

// Access says how to reach a cluster, as kubectl does: a file, by default $KUBECONFIG or ~/.kube/config, or the service account
// of the pod that the process is in, and a context in the file, by default its current one.
type Access struct {
	Kubeconfig, Context string
}

// connect returns a client. It makes no request.
func (a Access) connect() (*api, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: a.Context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	config.UserAgent = "mustang-bench"
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &api{dynamic: client, config: config}, nil
}

func (a Access) command(exe, namespace, pod string) []string {
	return []string{exe, ExecCommand, a.Kubeconfig, a.Context, namespace, pod}
}

// startApart starts a command that no signal of the terminal reaches: whoever started it ends it.
func startApart(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

// Exec runs a command in a pod, with the arguments of [ExecCommand]: file, context, namespace, pod, command. It ends when the
// command does, or when ctx ends.
func Exec(ctx context.Context, args []string, streams kube.ExecStreams) error {
	if len(args) < 5 {
		return errors.New("want KUBECONFIG CONTEXT NAMESPACE POD COMMAND")
	}
	a, err := (Access{Kubeconfig: args[0], Context: args[1]}).connect()
	if err != nil {
		return err
	}
	a.namespace = args[2]
	return a.exec(ctx, args[3], args[4:], streams)
}

func (a *api) exec(ctx context.Context, pod string, command []string, streams kube.ExecStreams) error {
	return kube.Exec(ctx, a.config, kube.ExecCommand{Namespace: a.namespace, Pod: pod, Container: container, Words: command}, streams)
}

func decode[T any](o map[string]any) (T, error) {
	var t T
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o, &t)
	return t, err
}
