// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"

	"sigs.k8s.io/yaml"
)

// YAML returns the configuration as a file for [Decode]: both documents with all fields.
func (c *Config) YAML() ([]byte, error) {
	var out bytes.Buffer
	for i, document := range []any{&c.KubeProxy, &c.Slipstream} {
		data, err := yaml.Marshal(document)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(data)
	}
	return out.Bytes(), nil
}
