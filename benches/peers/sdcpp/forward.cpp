// Forward passes of stable-diffusion.cpp's transformers, on command; see CMakeLists.txt. Started by denoise.py, not by hand.
//
//     sdcpp_forward flux|wan WEIGHTS THREADS flash|plain f32|f16|bf16|stored NAME=FILE:NE0,NE1,… …
//
// Inputs are raw f32 in the order of ggml's sizes: x, timesteps, context, and for Flux y and guidance. One command a line on standard
// input, one JSON object a line on standard output: `forward` answers with elapsed_s of FluxRunner's or WanRunner's `compute`, as the
// sampler calls it (building the graph included); `output PATH` also writes the result, raw f32.

#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <unistd.h>

#include "flux.hpp"
#include "model.h"
#include "wan.hpp"

// Of ggml-cpu.h, beside which stable-diffusion.cpp's own headers don't compile.
extern "C" {
int ggml_cpu_has_avx512(void);
int ggml_cpu_has_avx512_vnni(void);
int ggml_cpu_has_avx512_bf16(void);
int ggml_cpu_has_llamafile(void);
}

namespace {

const std::string PREFIX = "model.diffusion_model";
using Tensor             = sd::Tensor<float>;

Tensor read(const std::string& description) {
    auto colon = description.rfind(':');
    std::vector<int64_t> shape;
    std::istringstream sizes(description.substr(colon + 1));
    for (std::string size; std::getline(sizes, size, ',');) {
        shape.push_back(std::stoll(size));
    }
    Tensor tensor(shape);
    std::ifstream file(description.substr(0, colon), std::ios::binary);
    file.read(reinterpret_cast<char*>(tensor.data()), tensor.numel() * sizeof(float));
    if (!file) {
        throw std::runtime_error(description + " can't be read");
    }
    return tensor;
}

struct Network {
    ggml_backend_t backend = ggml_backend_cpu_init();
    std::unique_ptr<Flux::FluxRunner> flux;
    std::unique_ptr<WAN::WanRunner> wan;
    std::map<std::string, Tensor> inputs;
    int threads;

    Network(const std::string& family, const std::string& weights, int threads, bool flash, const std::string& type)
        : threads(threads) {
        ModelLoader loader;
        if (!loader.init_from_file_and_convert_name(weights, PREFIX + ".")) {
            throw std::runtime_error(weights + " can't be read");
        }
        auto& stored = loader.get_tensor_storage_map();
        std::map<std::string, ggml_type> types{{"f32", GGML_TYPE_F32}, {"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}};
        if (type != "stored") {
            loader.set_wtype_override(types.at(type));
        }
        std::map<std::string, ggml_tensor*> tensors;
        GGMLRunner* runner = nullptr;
        if (family == "flux") {
            flux   = std::make_unique<Flux::FluxRunner>(backend, false, stored, PREFIX, VERSION_FLUX, false);
            runner = flux.get();
        } else {
            wan    = std::make_unique<WAN::WanRunner>(backend, false, stored, PREFIX, VERSION_WAN2);
            runner = wan.get();
        }
        runner->alloc_params_buffer();
        if (flux) {
            flux->get_param_tensors(tensors, PREFIX);
        } else {
            wan->get_param_tensors(tensors, PREFIX);
        }
        if (!loader.load_tensors(tensors, {}, threads)) {
            throw std::runtime_error(weights + " lacks tensors");
        }
        runner->set_flash_attention_enabled(flash);
    }

    Tensor run() {
        if (flux) {
            return flux->compute(threads, inputs["x"], inputs["timesteps"], inputs["context"], {}, inputs["y"], inputs["guidance"]);
        }
        return wan->compute(threads, inputs["x"], inputs["timesteps"], inputs["context"]);
    }
};

void log(sd_log_level_t, const char* text, void*) {
    std::cerr << text;
}

}  // namespace

int main(int count, char** arguments) try {
    if (count < 6) {
        throw std::runtime_error("too few arguments");
    }
    // Answers go out on a descriptor of their own: the library may print on standard output.
    FILE* answers = fdopen(dup(1), "w");
    dup2(2, 1);
    sd_set_log_callback(log, nullptr);
    std::vector<std::string> words(arguments + 1, arguments + count);
    bool flash = words[3] == "flash";
    Network network(words[0], words[1], std::stoi(words[2]), flash, words[4]);
    for (size_t at = 5; at < words.size(); at++) {
        auto equals                              = words[at].find('=');
        network.inputs[words[at].substr(0, equals)] = read(words[at].substr(equals + 1));
    }
    std::string about = std::string("stable-diffusion.cpp of stable-diffusion-cpp-python ") + SDCPP_SDIST + ", ggml " + ggml_version();
    for (auto [name, has] : {std::pair("AVX512", ggml_cpu_has_avx512()), {"AVX512_VNNI", ggml_cpu_has_avx512_vnni()},
                             {"AVX512_BF16", ggml_cpu_has_avx512_bf16()}, {"LLAMAFILE", ggml_cpu_has_llamafile()}}) {
        about += has ? std::string(", ") + name : "";
    }
    about += ", flash attention " + std::string(flash ? "on" : "off") + ", weights as " + words[4];
    fprintf(answers, "{\"about\": \"%s\"}\n", about.c_str());
    fflush(answers);
    for (std::string line; std::getline(std::cin, line);) {
        auto start  = std::chrono::steady_clock::now();
        auto result = network.run();
        std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        if (line.rfind("output ", 0) == 0) {
            std::ofstream file(line.substr(7), std::ios::binary);
            file.write(reinterpret_cast<const char*>(result.data()), result.numel() * sizeof(float));
        }
        if (result.empty()) {
            fprintf(answers, "{\"error\": \"no result\"}\n");
        } else {
            fprintf(answers, "{\"elapsed_s\": %.6f}\n", elapsed.count());
        }
        fflush(answers);
    }
} catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
}
