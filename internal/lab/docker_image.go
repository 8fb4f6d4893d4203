// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	dockerRepository = "mustang"
	dockerTag        = "lab"
	dockerImage      = dockerRepository + ":" + dockerTag
	// dockerProgram is where the image has our program, which is all that is in it.
	dockerProgram = "/mustang"
)

// importImage makes the containers' image from a static program.
func (a dockerAPI) importImage(ctx context.Context, program string) error {
	file, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer file.Close()
	if err := checkStatic(file); err != nil {
		return fmt.Errorf("image: %s %w", program, err)
	}
	body, archive := io.Pipe()
	go func() { _ = archive.CloseWithError(writeImage(archive, file)) }()
	defer body.Close() // ends the write
	answer, err := a.send(ctx, "POST /images/create?fromSrc=-&repo="+dockerRepository+"&tag="+dockerTag, body)
	if err != nil {
		return fmt.Errorf("dockerd: import image: %w", err)
	}
	// The answer is a row of JSON texts. What went wrong is in the last.
	for decoder := json.NewDecoder(bytes.NewReader(answer)); ; {
		var progress struct{ Error string }
		if err := decoder.Decode(&progress); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("dockerd: import image: %w", err)
		}
		if progress.Error != "" {
			return fmt.Errorf("dockerd: import image: %s", progress.Error)
		}
	}
}

// writeImage writes the only layer of the image.
func writeImage(w io.Writer, program *os.File) error {
	info, err := program.Stat()
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	header := &tar.Header{Name: dockerProgram[1:], Mode: 0o755, Size: info.Size(), Typeflag: tar.TypeReg}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.Copy(archive, program); err != nil {
		return err
	}
	return archive.Close()
}

// checkStatic refuses a program that needs a dynamic loader, which the image
// lacks.
func checkStatic(program io.ReaderAt) error {
	file, err := elf.NewFile(program)
	if err != nil {
		return err
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return errors.New("is not static (build it with CGO_ENABLED=0)")
		}
	}
	return nil
}
