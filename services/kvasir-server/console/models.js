// Names of models: kept once, used by every page that shows a model's id.

import * as format from "./format.js";
import { useResource } from "./resource.js";

/** @typedef {import("./types.js").ModelList} ModelList */

export function useModels() {
  const list = /** @type {import("./resource.js").Resource<ModelList>} */ (useResource("/v1/models"));
  const models = list.data?.models ?? [];
  const names = new Map(models.map((model) => [model.model_id, model.lora_name ? `${model.model_name} + ${model.lora_name}` : model.model_name]));
  return { list, models, name: (/** @type {string} */ id) => names.get(id) ?? format.short(id) };
}
