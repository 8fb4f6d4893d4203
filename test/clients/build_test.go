// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"mustang/internal/testkit"
)

const (
	// imageName is the name of the only image. Nothing is pulled: the host does not exist.
	imageName = "mustang.test/clients:latest"
	// imageProgram is the path of the program client in the image. The image holds no
	// other file: an emulated guest unpacks slowly.
	imageProgram = "/client"
)

// buildDir returns a directory for files that are built once for all tests. TestMain removes it.
var buildDir = sync.OnceValues(func() (string, error) {
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", buildPrefix, os.Getpid()))
})

// buildPrefix is the prefix of the names of such directories. The ID of the test's process and a dash follow.
const buildPrefix = "mst-clients-"

// clearBuilds removes the directories of tests that were killed.
func clearBuilds() error {
	paths, err := filepath.Glob(filepath.Join(os.TempDir(), buildPrefix+"*"))
	for _, path := range paths {
		if isDead(filepath.Base(path), buildPrefix) {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// build builds a program without cgo, so that it is static, and returns its path.
func build(name, of string) (string, error) {
	dir, err := buildDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, of)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w: %s", of, err, strings.TrimSpace(string(out)))
	}
	return path, nil
}

// cnitool builds cnitool.
var cnitool = sync.OnceValues(func() (string, error) {
	return build("cnitool", "github.com/containernetworking/cni/cnitool")
})

// mustangProgram builds the command mustang.
var mustangProgram = sync.OnceValues(func() (string, error) { return build("mustang", "mustang/cmd/mustang") })

// image builds the image of the containers, and returns the path of its archive.
var image = sync.OnceValues(func() (string, error) {
	program, err := build("client", "mustang/test/clients/client")
	if err != nil {
		return "", err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	path := program + ".tar"
	return path, writeImage(path, binary)
})

// built returns the result of a function such as image. An error fails the test.
func built(t testing.TB, fn func() (string, error)) string {
	t.Helper()
	return testkit.Must(fn())(t)
}

// writeImage writes an image with one program in the format of `docker save`, which all runtimes read.
func writeImage(path string, program []byte) error {
	layer, err := archive(file{imageProgram[1:], program})
	if err != nil {
		return err
	}
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{imageProgram}},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{imageName}, "Layers": []string{
		"layer.tar"}}})
	if err != nil {
		return err
	}
	whole, err := archive(file{"manifest.json", manifest}, file{"config.json", config}, file{"layer.tar", layer})
	if err != nil {
		return err
	}
	return os.WriteFile(path, whole, 0o600)
}

// file is a file of an archive.
type file struct {
	name string
	data []byte
}

func archive(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
